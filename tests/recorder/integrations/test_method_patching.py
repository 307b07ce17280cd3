"""Replacements of methods: not noticed by the program, and gone when recording ends."""

import copy
import inspect
import pickle
import subprocess
import sys
import traceback
from typing import Any

import cloudpickle
import gymnasium
import pytest
from recorded import Record
from toy_environments import Doubled, Walk, events

CLASSES = (gymnasium.Env, gymnasium.Wrapper, Walk, Doubled)


def looks() -> Any:
    """All that the program can ask its classes and environments."""
    env = Doubled(Walk())
    return (
        [vars(cls).get(name) for cls in CLASSES for name in ("step", "reset") if not recording()],
        [getattr(cls, name) for cls in CLASSES for name in ("step", "reset")],
        [str(inspect.signature(cls.reset)) for cls in CLASSES],
        str(inspect.signature(env.reset)),
        str(inspect.signature(env.step)),
        inspect.getsource(Walk.step),
        inspect.getsource(Walk().step),
        [inspect.isfunction(Walk.step), inspect.ismethod(env.step), env.step.__name__, env.step.__doc__],
        [env.step.__self__ is env, env.step.__module__, env.step.__qualname__],
        Walk.__mro__,
        sorted(vars(Walk)),
        type(env).step is Doubled.step,
        env.step == env.step,
    )


def recording() -> bool:
    from rltrace.recorder import current_session

    return current_session() is not None


def test_a_program_that_looks_closely_sees_its_own_classes(record: Record) -> None:
    """Functions looked up on classes are the originals; signatures, sources, names and bound methods are as ever."""
    plain = looks()
    assert record(looks).returned[1:] == plain[1:]
    assert looks() == plain


def test_all_is_undone_and_what_the_program_put_in_its_place_stays(record: Record) -> None:
    before = [dict(vars(cls)) for cls in CLASSES]
    finders = list(sys.meta_path)

    class Own(Walk):
        pass

    with record.block():
        Own.step = lambda self, action: "own"
    assert [dict(vars(cls)) for cls in CLASSES] == before
    assert Own().step(1) == "own"
    assert sys.meta_path == finders


def test_copies_and_pickles_of_environments_are_as_ever(record: Record) -> None:
    """Deep copies, pickles, and classes pickled by value as child processes get them: the recorder is not in them."""
    kept: list[Any] = []
    with record.block():
        env = Walk()
        env.reset(seed=0)
        again = copy.deepcopy(env)
        kept.append((env.step(1)[0].tolist(), again.step(1)[0].tolist()))
        kept.append(pickle.loads(pickle.dumps(env.step))(1)[0].tolist())

        class Local(gymnasium.Env[Any, Any]):
            def step(self, action: Any) -> Any:
                return action, 0.0, False, False, {}

        kept.append(cloudpickle.dumps(Local))
    assert kept[:2] == [([1.0], [1.0]), [2.0]]
    assert b"rltrace" not in kept[2]
    assert pickle.loads(kept[2])().step(3)[0] == 3


def test_a_class_that_gets_its_methods_late_is_known_once_it_was_at_work(record: Record) -> None:
    """As those of ``__main__`` do in child processes. What it overrides is never taken for the call itself."""
    with record.block() as got:
        late = type("Late", (Walk,), {})
        late.reset = lambda self, **given: Walk.reset(self, **given)
        late.step = lambda self, action: super(late, self).step(action)
        env = late()
        for _ in range(3):
            env.step(1)
    found = events(got)
    assert [event.cells["step"] for event in found] == [1, 2]
    assert {event.row.line for event in found} == {"env.step(1)"}


@pytest.mark.parametrize("keyword", [{}, {"mark": 1}])
def test_hooks_of_the_program_s_own_on_subclassing_run(record: Record, keyword: dict[str, int]) -> None:
    seen: list[Any] = []
    with record.block():

        class Marked(gymnasium.Env[Any, Any]):
            def __init_subclass__(cls, **keywords: Any) -> None:
                super().__init_subclass__()
                seen.append((cls.__name__, keywords))

        type("Below", (Marked,), {}, **keyword)
    assert seen == [("Below", keyword)]


def test_a_program_s_error_is_its_own(record: Record) -> None:
    """The exception, its cause and the program's frames are as ever; no error is added."""

    class Broken(Walk):
        def step(self, action: Any) -> Any:
            raise KeyError("its own")

    with record.block():
        with pytest.raises(KeyError) as caught:
            Broken().step(0)
        assert caught.value.args == ("its own",)
        assert caught.value.__context__ is None
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[0] == "test_a_program_s_error_is_its_own"
        assert names[-1] == "step"


IMPORTS = """
import sys, torch
import rltrace
with rltrace.record("{path}"):
    x = torch.ones(1)
    assert "gymnasium" not in sys.modules and "stable_baselines3" not in sys.modules
    import gymnasium
    try:
        import gymnasium.nothing
    except ModuleNotFoundError as error:
        assert error.name == "gymnasium.nothing"
    assert type(gymnasium.core.__spec__).__name__ == "ModuleSpec"
    assert type(gymnasium.core.__spec__) is type(sys.__spec__)
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.step(0)
    from stable_baselines3.common.vec_env import VecEnv
    assert type(vars(VecEnv)["step"]).__name__ == "MethodPatch"
assert type(vars(VecEnv)["step"]).__name__ == "function"
from rltrace.trace.read.reader import open_trace
trace = open_trace("{path}")
stream = trace.processes[0].streams[0]
print([int(kind) for kind in stream.read(0, stream.rows).columns[:, 0]])
"""


def test_a_library_is_known_from_the_moment_the_program_imports_it(tmp_path: Any) -> None:
    """The recorder imports none of them; one imported after recording began is recorded all the same."""
    code = IMPORTS.format(path=tmp_path / "t.zarr")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1, 7, 3, 4]"
