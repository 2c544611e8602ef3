//! Ranks that are processes, over UCX.
