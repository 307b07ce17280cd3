"""The pages of ``docs/stories``, done as a person does them: command by command, in a folder with the examples."""

from pathlib import Path

import pytest
from shown import check_out_examples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the commands of a page are typed."""
    check_out_examples(tmp_path)
    return tmp_path
