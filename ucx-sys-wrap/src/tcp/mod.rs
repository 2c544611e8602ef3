//! Ranks that are processes, over TCP sockets.
