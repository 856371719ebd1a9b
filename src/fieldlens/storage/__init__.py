"""Files that are written atomically and verified when read: the content cache, checkpoints, results, run folders."""
