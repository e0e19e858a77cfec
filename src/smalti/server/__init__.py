"""Pictures for programs and people over HTTP: a queue of jobs, workers that make them, a gallery.

The queue, its archive and the workers know nothing of HTTP (`queue`, `archive`, `worker`); what is
asked of them is `asked`, the models that they find are `models`, the pictures `gallery`. `guard`
decides which requests are let in, `native` and `sdapi` answer them, `page_files` gives the page of
the folder `page`, `serve` starts it all.
"""
