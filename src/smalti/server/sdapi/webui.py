"""What the web UI's API keeps beside the site: options that clients set, and names of tasks."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from smalti.errors import InputError, SmaltiError
from smalti.server.archive import JobRecord
from smalti.server.previews import LatestPreview
from smalti.server.site import Site

TASKS_KEPT = 1000
"""Tasks whose end is still told of, for clients that ask until they hear of it."""
OPTION_CHARACTERS_MAX = 100_000
"""Of all options that clients set, as JSON: a hundred times what they do."""
KEPT = "options of the web UI"
"""What the archive knows the options as."""
CHECKPOINT = "sd_model_checkpoint"
"""The option that says which model makes pictures."""
USUAL: dict[str, Any] = {
    "samples_format": "png", "sd_vae": "Automatic", "randn_source": "NV",
    "CLIP_stop_at_last_layers": 1, "forge_additional_modules": [], "live_previews_enable": True,
    "jpeg_quality": 80}


class WebUi:
    """The state of this API."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._tasks: OrderedDict[str, str | None] = OrderedDict()
        self._turn = threading.Lock()
        self._told: set[str] = set()
        self._set: dict[str, Any] = json.loads(site.archive.kept(KEPT) or "{}")

    def settings(self) -> dict[str, Any]:
        """The options that were set, and the usual ones in place of others that count."""
        return self._settings()[0]

    def ignored(self) -> list[str]:
        """What options that were set say that no picture can be made with any more."""
        return self._settings()[1]

    def _settings(self) -> tuple[dict[str, Any], list[str]]:
        """Both. An option was checked when it was set; but the file that it names may have gone
        since, or an earlier Smalti may have kept it. All pictures of all clients would be refused
        for it, so it is left out, and the log says so."""
        from smalti.server.models import to_log
        from smalti.server.sdapi.fields import check_settings

        with self._turn:
            kept = dict(self._set)
        folders, ignored = self.site.folders(), []
        with suppress(InputError):
            check_settings(kept, folders)
            return {**USUAL, **kept}, []
        for name, value in list(kept.items()):
            try:
                check_settings({name: value}, folders)
            except InputError as error:
                del kept[name]
                ignored.append(f"the option {name} is ignored: {error}")
                if ignored[-1] not in self._told:
                    self._told.add(ignored[-1])
                    to_log(ignored[-1])
        return {**USUAL, **kept}, ignored

    def options(self) -> dict[str, Any]:
        """All options as clients read them: the model by its title in the list of models."""
        from smalti.server.models import MODEL
        from smalti.server.sdapi.lists import title

        known, models = self.settings(), self.site.folders().recent()
        chosen = known.get(CHECKPOINT) or models[0].name
        file = next((each for each in models if (each.kind, each.name) == (MODEL, chosen)), None)
        return {**known, CHECKPOINT: chosen if file is None else title(self.site, file)}

    def set(self, options: dict[str, Any]) -> None:
        """Set options, which are kept. Raises InputError for those that cannot be: the pictures of
        all clients are made with them."""
        from smalti.server.models import MODEL
        from smalti.server.sdapi.fields import check_settings
        from smalti.server.sdapi.files import found_file

        wanted, folders = dict(options), self.site.folders()
        check_settings(wanted, folders)
        if wanted.get(CHECKPOINT):
            wanted[CHECKPOINT] = found_file(folders, wanted[CHECKPOINT], MODEL).name
        with self._turn:
            both = {**self._set, **wanted}
            text = json.dumps(both)
            if len(text) > OPTION_CHARACTERS_MAX:
                raise InputError(f"all options take more than {OPTION_CHARACTERS_MAX} characters")
            self.site.archive.keep(KEPT, text)
            self._set = both

    def submit(self, fields: dict[str, Any]) -> JobRecord:
        """A job for fields of txt2img or img2img. Raises what asking for a job does."""
        from smalti.server.asked import opened
        from smalti.server.sdapi.fields import translated

        task = fields.get("force_task_id")
        try:
            folders = self.site.folders()
            wanted = translated(fields, self.settings(), folders)
            opened(wanted, folders)
            job = self.site.queue.submit(wanted)
        except SmaltiError:
            self._note(task, None)  # whoever asks for this task is told that it has ended
            raise
        self._note(task, job.id)
        return job

    def preview(self, job: JobRecord) -> LatestPreview | None:
        """What the picture of a job that runs will be, unless the options say that nobody looks."""
        with self._turn:
            wanted = self._set.get("live_previews_enable", True)
        if not wanted:
            return None
        self.site.previews.look()
        return self.site.previews.shown(job.id)

    def _note(self, task: object, job: str | None) -> None:
        """Know a task by the name that its client gave it."""
        if not isinstance(task, str):
            return
        with self._turn:
            self._tasks[task] = job
            self._tasks.move_to_end(task)
            while len(self._tasks) > TASKS_KEPT:
                self._tasks.popitem(last=False)

    def is_known(self, task: object) -> bool:
        """Whether a task was begun, or refused."""
        with self._turn:
            return isinstance(task, str) and task in self._tasks

    def task(self, name: object) -> JobRecord | None:
        """The job of a task that a client named; None where there is none any more."""
        with self._turn:
            id = self._tasks.get(name) if isinstance(name, str) else None
        return None if id is None else self.site.queue.known(id)

    def task_names(self) -> dict[str, str]:
        """The names of tasks by the ids of their jobs."""
        with self._turn:
            return {job: task for task, job in self._tasks.items() if job is not None}
