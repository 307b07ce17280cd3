"""From one dispatched op to one row: provenance of inputs, modules, call sites, storages."""
