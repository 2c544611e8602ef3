//! The parameter server: what was pushed is applied once or kept, whoever dies, hangs, comes late or sends
//! nonsense.

mod again;
mod awaited;
mod every;
mod held;
mod processes;
mod resumed;
mod returned;
mod simulated;
mod wires;
