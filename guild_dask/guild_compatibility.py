"""A patch that guildai 0.9.0 needs on Python 3.12 and later.

Guild adds an importer for project directories to sys.path_hooks that has only `find_module`. Python 3.12 calls only
`find_spec`, and fails with an AttributeError in steps, in staged pipelines and under `python -m guild...`.
"""

from guild import model


def patch() -> None:
    """Adds a `find_spec` that finds nothing to Guild's importer, if it has none."""
    importer = model.ModelImporter
    if not hasattr(importer, "find_spec"):
        importer.find_spec = staticmethod(lambda _fullname, _target=None: None)
