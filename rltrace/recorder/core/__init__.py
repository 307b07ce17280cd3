"""From one dispatched op to one row: producers of inputs, modules, call sites, storages."""
