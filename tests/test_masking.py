"""Secrets and the home folder stay out of a trace; numbers and names that only sound like secrets stay in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrace.masking import MASK, home_as_tilde, masked_arguments, masked_text, secret_name

LONG = "9f8a7b6c5d4e3f2a1b0c9d8e"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "abc"], ["--api-key", MASK]),
        (["--api-key=abc"], [f"--api-key={MASK}"]),
        (["--api_key", "abc", "--lr", "1"], ["--api_key", MASK, "--lr", "1"]),
        (["env", "WANDB_API_KEY=abc", "python"], ["env", f"WANDB_API_KEY={MASK}", "python"]),
        (["wandb.api_key=abc"], [f"wandb.api_key={MASK}"]),
        (["--hub.token", "abc"], ["--hub.token", MASK]),
        (["-password", "p w"], ["-password", MASK]),
        (["--key", LONG], ["--key", MASK]),
        (["--key", "observation"], ["--key", "observation"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["--max-tokens", "512", "--token-limit", "4096"], ["--max-tokens", "512", "--token-limit", "4096"]),
        (["--lr", "3e-4"], ["--lr", "3e-4"]),
        (["hf_abcdefghijklmnop"], [MASK]),
        (["http://me:pw@example.org/x"], [f"http://me:{MASK}@example.org/x"]),
        (["-H", "Authorization: Bearer abc.def"], ["-H", f"Authorization: Bearer {MASK}"]),
        (["--tokenizer", "gpt2", "--author", "me"], ["--tokenizer", "gpt2", "--author", "me"]),
        (["train.py", "--config", "a=b c"], ["train.py", "--config", "a=b c"]),
    ],
)
def test_arguments(given: list[str], shown: list[str]) -> None:
    """Values after a telling name, in either spelling, and tokens that are recognised anywhere."""
    assert masked_arguments(given) == shown


@given(st.lists(st.text()))
def test_arguments_stay_arguments(arguments: list[str]) -> None:
    """However strange, a command line keeps its number of arguments, and masking twice changes nothing."""
    once = masked_arguments(arguments)
    assert len(once) == len(arguments)
    assert masked_arguments(once) == once


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/root", "~"),
        ("/root/a", "~/a"),
        ("--data=/root/a:/root/b", "--data=~/a:~/b"),
        ("/rootfs/a", "/rootfs/a"),
        ("/mnt/root/a", "/mnt/root/a"),
        ("/root.old/a", "/root.old/a"),
        ("open('/root/a')", "open('~/a')"),
    ],
)
def test_home(text: str, shown: str) -> None:
    """The home folder is ``~`` where a path begins with it, and nowhere else."""
    assert home_as_tilde(text, "/root") == shown
    assert home_as_tilde(text, "/root/") == shown


def test_home_that_is_no_folder_of_ones_own() -> None:
    """A service account whose home is ``/`` hides nothing."""
    assert home_as_tilde("/a/b", "/") == "/a/b"


def test_names() -> None:
    """Words count, not letters in a row."""
    assert secret_name("MY_SECRET")
    assert secret_name("aws-access-key-id")
    assert not secret_name("secretary")
    assert not secret_name("monkey")
    assert masked_text("nothing to hide") == "nothing to hide"
