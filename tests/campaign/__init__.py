"""The long tests in pieces: one file per piece, one runner, one JSON with what came out."""
