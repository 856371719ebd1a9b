"""The explorer: a text whose words show what the model looked at, in the report and in `fieldlens explore`."""
