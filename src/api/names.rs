//! Names of the objects made for a MiniCluster or a burst.
