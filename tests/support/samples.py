"""A small trace with a bit of everything but values and activation rows, for tests that take traces apart."""

from pathlib import Path

from rltrace.testing import TraceBuilder
from rltrace.trace.format.process_start import write_start


def small_trace(path: Path, noise: str = "", steps: int = 2) -> Path:
    """Two processes, three streams, segments, tables, steps, series, a window, facts, a start record without a process.

    ``noise`` is what the second step reads from outside: another one makes a program of the same ops diverge there.
    """
    builder = TraceBuilder(path)
    builder.window(0)
    for step in range(steps):
        first = builder.op(
            "aten.mm.default", inputs=[("outside", f"obs{noise if step else ''}")], outputs=[f"h{step}{noise}"]
        )
        drawn = builder.op("aten.normal_.default", inputs=["overwritten"], rng=f"g{step}", outputs=["n"], flags=1)
        builder.op(
            "aten.add.Tensor",
            inputs=[first, drawn],
            outputs=["s"],
            integers=[step],
            floats=[step / 2],
            module=f"net.{step}",
        )
        builder.op("aten._local_scalar_dense.default", inputs=[first], value=1.5, kernel={"library": "MKL"})
        builder.sample("return", step / 3)
        builder.end_step(parameters=f"p{step}{noise if step else ''}", gradients="g", generators="r")
        builder.commit()
    thread = builder.stream("rank0/main/thread:loader")
    thread.op("aten.stack.default", site=("data.py", 3, "collate", "torch.stack(batch)"), outputs=["batch"])
    builder.process("rank1/main").stream().op("aten.mm.default", outputs=["other"])
    builder.fact("torch.version", "2.13")
    write_start(builder.path, {"argv": ["nothing.py"], "pid": 0})
    return builder.finish()
