"""What a worker process of Ray is called: by what it is there for, since Ray hands tasks to whichever is free.

Owns the questions to Ray. Never imports it: a process in which it is not loaded is no worker of it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

WORKER = "default_worker.py"
"""The program that Ray's workers run."""


def ray_role() -> str | None:
    """``ray:Learner`` in an actor, by its own name or its class's; ``pool:ray`` where tasks come as they come.

    None in every other process. An actor's worker asks while it builds the actor, which is when it loads the program.
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or Path(sys.argv[0] or "python").name != WORKER:
        return None
    try:
        context = ray.get_runtime_context()
        if context.get_actor_id() is None:
            return "pool:ray"
        name = context.get_actor_name() or str(context.get_task_function_name()).removesuffix(".__init__")
        return f"ray:{name.rpartition('.')[2]}"
    except Exception:  # of a version that has no such question
        return "ray:worker"
