//! Settings from the environment.

use std::ffi::OsString;
use std::time::Duration;

use ucx_sys_wrap::bootstrap::{SWITCH, switch};

use crate::error::{Error, Result};
use crate::group::{Group, Settings};
use crate::join::Join;
use crate::plan::SEGMENTS;

const TIMEOUT: &str = "BREVITY_TIMEOUT";
const PROGRESS_THREAD: &str = "BREVITY_PROGRESS_THREAD";
const ANY_ORDER: &str = "BREVITY_ANY_ORDER";
const ALGORITHM: &str = "BREVITY_ALGORITHM";
const MACHINE: &str = "BREVITY_MACHINE";
const SEGMENT: &str = "BREVITY_SEGMENT";

impl Group {
    /// Joins the job that the environment describes, and waits until all ranks have joined.
    ///
    /// The launcher tells the rank its place: `brevity run`, `mpirun` of Open MPI, `mpiexec` of MPICH,
    /// `torchrun`, Slurm's `srun`, or `BREVITY_RANK`, `BREVITY_WORLD_SIZE`, `BREVITY_MASTER`, and
    /// `BREVITY_KEY` or `BREVITY_JOB` set by hand; see
    /// [`Identity::from_lookup`](ucx_sys_wrap::bootstrap::Identity::from_lookup). Without any, this is a
    /// group of one rank. `BREVITY_TRANSPORT` chooses the transport, `BREVITY_TIMEOUT` the seconds that a
    /// call may take, `BREVITY_JOIN_TIMEOUT` those that joining may take, `BREVITY_INTERFACE` the network,
    /// and `BREVITY_PROGRESS_THREAD` whether a thread moves non-blocking calls.
    ///
    /// In a program that also uses MPI: under `mpirun`, call this after `MPI_Init`. MPICH's `mpiexec` talks
    /// to only one of the two: set `BREVITY_MASTER=host:port` to leave it to MPI.
    ///
    /// [`Join`] has these settings without an environment.
    ///
    /// # Errors
    /// When a variable is missing or invalid, when ranks do not join in time (by name), and when the system
    /// has no thread or descriptor left.
    pub fn from_env() -> Result<Self> {
        Join::from_env()?.join()
    }
}

impl Settings {
    /// The defaults, changed by `BREVITY_TIMEOUT`, `BREVITY_PROGRESS_THREAD`, `BREVITY_ANY_ORDER`,
    /// `BREVITY_ALGORITHM`, `BREVITY_SEGMENT` and `BREVITY_MACHINE` of this process's environment.
    ///
    /// # Errors
    /// When a variable is invalid.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut settings = Self::default();
        let wrong = |variable, expected| {
            move |found: &OsString| {
                Error::Transport(ucx_sys_wrap::Error::Environment {
                    variable,
                    found: format!("{found:?}"),
                    expected,
                })
            }
        };
        if let Some(text) = lookup(TIMEOUT) {
            let refused = wrong(TIMEOUT, "seconds above 0, as 30 or 0.5");
            settings.timeout = text.to_str().and_then(seconds).ok_or_else(|| refused(&text))?;
        }
        if let Some(text) = lookup(PROGRESS_THREAD) {
            let refused = wrong(PROGRESS_THREAD, SWITCH);
            settings.progress_thread = text.to_str().and_then(switch).ok_or_else(|| refused(&text))?;
        }
        if let Some(text) = lookup(ANY_ORDER) {
            let refused = wrong(ANY_ORDER, SWITCH);
            settings.any_order = text.to_str().and_then(switch).ok_or_else(|| refused(&text))?;
        }
        if let Some(text) = lookup(ALGORITHM) {
            let refused = wrong(ALGORITHM, "operations with an algorithm each, as all-reduce:halving");
            let wishes = text.to_str().ok_or_else(|| refused(&text))?.parse();
            settings.wishes = wishes.map_err(|error| Error::Wish { variable: ALGORITHM, error })?;
        }
        if let Some(text) = lookup(SEGMENT) {
            let refused = wrong(SEGMENT, "bytes, from 64 to 1073741824");
            let bytes = text.to_str().and_then(|text| text.trim().parse().ok());
            let bytes = bytes.filter(|bytes| SEGMENTS.contains(bytes));
            settings.segment_bytes = bytes.ok_or_else(|| refused(&text))?;
        }
        if let Some(text) = lookup(MACHINE) {
            let refused = wrong(MACHINE, "links and speeds, as inside:1,0.5,0.1;between:50,2,8");
            let machine = text.to_str().ok_or_else(|| refused(&text))?.parse();
            settings.machine = Some(machine.map_err(|error| Error::Machine { variable: MACHINE, error })?);
        }
        Ok(settings)
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_timeout_is_a_positive_number_of_seconds() {
        let of = |text: &str| Settings::from_lookup(|name| (name == TIMEOUT).then(|| text.into()));
        assert_eq!(of("2.5").unwrap().timeout, Duration::from_millis(2500));
        for text in ["", "0", "-1", "soon", "NaN", "inf", "1e300"] {
            assert!(of(text).unwrap_err().to_string().contains("BREVITY_TIMEOUT"), "{text}");
        }
        let no_text = OsStr::from_bytes(b"\xff");
        let found = Settings::from_lookup(|name| (name == TIMEOUT).then(|| no_text.to_owned()));
        assert!(found.unwrap_err().to_string().contains(r#"BREVITY_TIMEOUT is "\xFF""#));
        assert_eq!(Settings::from_lookup(|_| None).unwrap().timeout, Settings::default().timeout);
    }

    #[test]
    fn orders_and_algorithms() {
        let of = |name: &str, text: &str| Settings::from_lookup(|asked| (asked == name).then(|| text.into()));
        assert!(of(ANY_ORDER, "1").unwrap().any_order && !of(ANY_ORDER, "off").unwrap().any_order);
        assert!(of(ANY_ORDER, "yes").unwrap_err().to_string().contains("BREVITY_ANY_ORDER"));
        let wishes = of(ALGORITHM, "all-reduce:halving").unwrap().wishes;
        assert_eq!(wishes.to_string(), "all-reduce:halving");
        let message = of(ALGORITHM, "all-reduce:rings").unwrap_err().to_string();
        assert!(message.contains("BREVITY_ALGORITHM") && message.contains("doubling, halving"), "{message}");
    }

    #[test]
    fn machines_and_segments() {
        let of = |name: &str, text: &str| Settings::from_lookup(|asked| (asked == name).then(|| text.into()));
        let machine = of(MACHINE, "between:50,2,8").unwrap().machine.unwrap();
        assert_eq!(machine.between.alpha, 50e-6);
        let message = of(MACHINE, "between:50").unwrap_err().to_string();
        assert!(message.contains("BREVITY_MACHINE") && message.contains("as 50,2,8"), "{message}");
        assert_eq!(of(SEGMENT, "4096").unwrap().segment_bytes, 4096);
        for text in ["", "63", "1073741825", "1e6"] {
            let message = of(SEGMENT, text).unwrap_err().to_string();
            assert!(message.contains("BREVITY_SEGMENT"), "{message}");
        }
    }

    #[test]
    fn the_progress_thread_is_on_or_off() {
        let of = |text: &str| Settings::from_lookup(|name| (name == PROGRESS_THREAD).then(|| text.into()));
        for (text, expected) in [("0", false), ("off", false), ("1", true), ("on", true)] {
            assert_eq!(of(text).unwrap().progress_thread, expected, "{text}");
        }
        for text in ["", "2", "yes", "ON", " 1"] {
            let message = of(text).unwrap_err().to_string();
            assert!(message.contains("BREVITY_PROGRESS_THREAD") && message.contains(SWITCH), "{message}");
        }
        assert!(!Settings::from_lookup(|_| None).unwrap().progress_thread);
    }
}
