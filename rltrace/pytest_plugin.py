"""What pytest loads where rltrace is installed: the plugins of extensions. ``pytest -p no:rltrace`` leaves them out."""

from rltrace.extension import extensions

pytest_plugins = [extension.pytest_plugin for extension in extensions() if extension.pytest_plugin]
