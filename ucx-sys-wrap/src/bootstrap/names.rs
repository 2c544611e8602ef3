//! The names of all variables that begin with `BREVITY_`, and a warning of others, which are likely typos.

use std::ffi::OsString;
use std::sync::Once;

/// The variables that this library reads, or sets for the ranks that it launches.
pub const NAMES: [&str; 27] = [
    "BREVITY_ALGORITHM",
    "BREVITY_ANNOUNCE",
    "BREVITY_ANY_ORDER",
    "BREVITY_ENCRYPT",
    "BREVITY_HOST_ID",
    "BREVITY_INCARNATION",
    "BREVITY_INTERFACE",
    "BREVITY_JOB",
    "BREVITY_JOIN_TIMEOUT",
    "BREVITY_KEY",
    "BREVITY_KEY_FILE",
    "BREVITY_LAUNCHER",
    "BREVITY_LOG",
    "BREVITY_MACHINE",
    "BREVITY_MASTER",
    "BREVITY_MASTER_RESERVED",
    "BREVITY_PMIX_LIB",
    "BREVITY_PORT_RANGE",
    "BREVITY_PROGRESS_THREAD",
    "BREVITY_RANK",
    "BREVITY_RETURN",
    "BREVITY_SEGMENT",
    "BREVITY_SHARED_MEMORY",
    "BREVITY_TIMEOUT",
    "BREVITY_TRANSPORT",
    "BREVITY_UCX_LIB",
    "BREVITY_WORLD_SIZE",
];

/// The variables of this library's own tests and benchmarks.
pub const TEST_NAMES: [&str; 30] = [
    "BREVITY_BENCH_NAMESPACE",
    "BREVITY_BENCH_TEST_MARK",
    "BREVITY_CLI_TEST_MARK",
    "BREVITY_CYCLES",
    "BREVITY_MESSAGES",
    "BREVITY_PEERS",
    "BREVITY_RENEW_ABI",
    "BREVITY_RENEW_C",
    "BREVITY_REQUIRE_CMAKE",
    "BREVITY_REQUIRE_LAUNCHERS",
    "BREVITY_REQUIRE_LISTENING",
    "BREVITY_REQUIRE_NAMESPACES",
    "BREVITY_REQUIRE_UCX",
    "BREVITY_REQUIRE_VALGRIND",
    "BREVITY_STRESS_SECONDS",
    "BREVITY_STRESS_SEED",
    "BREVITY_TABLE_RANKS",
    "BREVITY_TEST_ALONE",
    "BREVITY_TEST_BYTES",
    "BREVITY_TEST_DESCRIPTORS",
    "BREVITY_TEST_ESTIMATES",
    "BREVITY_TEST_EXITS",
    "BREVITY_TEST_FOLDER",
    "BREVITY_TEST_LANES",
    "BREVITY_TEST_MASTER_PORT",
    "BREVITY_TEST_MPIEXEC",
    "BREVITY_TEST_MPIRUN",
    "BREVITY_TEST_PATIENCE",
    "BREVITY_TEST_RANK",
    "BREVITY_VOLUME_RANKS",
];

const PREFIX: &str = "BREVITY_";

/// Warns, once in this process, of unknown variables. Under `brevity run` the launcher warns instead.
pub(crate) fn warn_of_unknown(names: impl IntoIterator<Item = OsString>) {
    static TOLD: Once = Once::new();
    let unknown: Vec<String> = names.into_iter().filter_map(|name| unknown(name.to_str()?)).collect();
    if !unknown.is_empty() && !crate::launch::is_launched() {
        TOLD.call_once(|| tracing::warn!("unknown variables are ignored: {}", unknown.join(", ")));
    }
}

/// The warning of a variable, if it is unknown: its name, and the most similar known one.
fn unknown(name: &str) -> Option<String> {
    let stem = name.strip_prefix(PREFIX)?;
    if NAMES.contains(&name) || TEST_NAMES.contains(&name) {
        return None;
    }
    let (distance, nearest) =
        NAMES.map(|known| (edit_distance(stem, &known[PREFIX.len()..]), known)).into_iter().min()?;
    Some(match distance <= (stem.len() / 3).max(1) {
        true => format!("{name} (did you mean {nearest}?)"),
        false => format!("{name} (no known name is like it)"),
    })
}

/// The optimal string alignment distance in bytes.
fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut above: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for i in 0..one.len() {
        let mut next = vec![i + 1];
        for j in 0..other.len() {
            let replaced = row[j] + usize::from(one[i] != other[j]);
            let mut least = replaced.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && one[i] == other[j - 1] && one[i - 1] == other[j] {
                least = least.min(above[j - 1] + 1);
            }
            next.push(least);
        }
        above = std::mem::replace(&mut row, next);
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (one, other, distance) in [
            ("", "", 0),
            ("", "KEY", 3),
            ("KEY", "", 3),
            ("TRASNPORT", "TRANSPORT", 1),
            ("KYE", "KEY", 1),
            ("TIMEOT", "TIMEOUT", 1),
            ("MASTERS", "MASTER", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edit_distance(one, other), distance, "{one} {other}");
        }
    }

    #[test]
    fn the_nearest_name_is_told() {
        for (name, told) in [
            ("BREVITY_TRASNPORT", Some("BREVITY_TRASNPORT (did you mean BREVITY_TRANSPORT?)")),
            ("BREVITY_TIMEOT", Some("BREVITY_TIMEOT (did you mean BREVITY_TIMEOUT?)")),
            ("BREVITY_KYE", Some("BREVITY_KYE (did you mean BREVITY_KEY?)")),
            ("BREVITY_COLOUR", Some("BREVITY_COLOUR (no known name is like it)")),
            ("BREVITY_", Some("BREVITY_ (no known name is like it)")),
            ("BREVITY_KEY", None),
            ("BREVITY_STRESS_SEED", None),
            ("PATH", None),
        ] {
            assert_eq!(unknown(name).as_deref(), told, "{name}");
        }
    }
}
