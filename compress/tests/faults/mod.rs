//! Why saved state is refused.

use brevity_compress::Error;
use brevity_compress::state::{self, Fault, State};

/// The fault of an error of saved state.
pub fn fault(result: Result<(), Error>) -> Fault {
    match result {
        Err(Error::State(fault)) => fault,
        other => panic!("expected a fault of saved state, found {other:?}"),
    }
}

/// Checks that saved bytes with a flipped bit, and any prefix of them, are refused and change nothing.
pub fn check_damage(bytes: &[u8], into: &mut impl State) {
    let before = state::to_bytes(into);
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let fault = fault(state::from_bytes(into, &damaged));
        let known = matches!(fault, Fault::NoState | Fault::Damaged { .. } | Fault::Truncated { .. });
        assert!(known, "bit {bit}: {fault:?}");
        assert_eq!(state::to_bytes(into), before, "bit {bit}");
    }
    for length in 0..bytes.len() {
        let fault = fault(state::from_bytes(into, &bytes[..length]));
        assert!(matches!(fault, Fault::Truncated { .. }), "{length} bytes: {fault:?}");
        assert_eq!(state::to_bytes(into), before, "{length} bytes");
    }
}
