"""OpenAI's API of pictures: `/v1/images/generations`, `/v1/images/edits`, `/v1/models`.

Fields, events and errors are those of the package `openai` (its types of `images`), which drives it
in tests.
"""
