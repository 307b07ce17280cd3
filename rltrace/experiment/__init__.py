"""Commands run again under the recorder, and what follows from how the runs compare."""
