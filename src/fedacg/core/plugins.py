"""What is named `package.module:attribute`, found and imported when it is needed."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from fedacg.errors import InputError


def resolve(reference: str, key: str) -> Any:
    """What `package.module:attribute` leads to; `key` is the setting that it was given for, which errors name.

    The module is looked for in the current folder first. What goes wrong inside it shows its traceback.
    """
    module_name, _, attribute = reference.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise InputError(f"{key} = {reference}: must look like module:function, such as my_package:mine")
    here = str(Path.cwd())
    # A user's module may be a file beside the experiment; a file there called fedacg is nobody's.
    if not module_name.startswith("fedacg.") and sys.path[0] not in ("", here):
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise InputError(
            f"{key} = {reference}: there is no module {error.name} in {here}, and none installed"
        ) from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise InputError(f"{key} = {reference}: the module {module_name} has no {attribute}") from None
