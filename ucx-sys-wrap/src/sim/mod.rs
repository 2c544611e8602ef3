//! A simulated network with virtual time.
