//! What computing costs on a simulated network.

use std::time::Duration;

use ucx_sys_wrap::sim::Stopwatch;

/// On a simulated network: what the work of a shard costs in virtual time. While a shard works, its rank does
/// nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Charge {
    /// Nothing.
    #[default]
    Nothing,
    /// So much for each byte of a request.
    PerByte(Duration),
    /// As long as this thread computes here ([`Stopwatch`]), times this factor. Runs are not equal then.
    Measured(f64),
}

impl Charge {
    /// Does the work of a request, and returns what it costs.
    pub(super) fn time(self, bytes: usize, work: impl FnOnce()) -> Duration {
        let stopwatch = Stopwatch::start();
        work();
        match self {
            Self::Nothing => Duration::ZERO,
            Self::PerByte(each) => each.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX)),
            Self::Measured(factor) => {
                let seconds = stopwatch.elapsed().as_secs_f64();
                Duration::try_from_secs_f64(seconds * factor).unwrap_or(Duration::ZERO)
            }
        }
    }
}
