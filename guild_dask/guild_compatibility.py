"""What guildai 0.9.0 needs in code to work on Python 3.12 and later.

Guild puts an importer for project directories on sys.path_hooks that has only `find_module`. Python 3.12 asks for
`find_spec` alone, and fails with an AttributeError in steps, in staged pipelines and under `python -m guild...`.
"""

from guild import model


def mend() -> None:
    """Gives Guild's importer a `find_spec` that finds nothing, where it has none."""
    importer = model.ModelImporter
    if not hasattr(importer, "find_spec"):
        importer.find_spec = staticmethod(lambda _fullname, _target=None: None)
