//! The parameter server: what was pushed is applied once or kept, whoever dies, hangs, comes late or sends
//! nonsense.

mod awaited;
mod processes;
mod resumed;
mod simulated;
mod wires;
