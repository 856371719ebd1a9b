"""Studies: many runs from one short file, each trained, evaluated and measured to one small result."""
