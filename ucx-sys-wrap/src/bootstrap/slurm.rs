//! Where the ranks of a step of Slurm meet when nothing else says so.

use super::master::{MASTER, Master};
use super::reserve::Ports;
use super::variables::{PORTS, Variables, not_set};
use crate::Result;

/// Ports that are derived from the job's number: below those that Linux hands out by itself.
const DERIVED: Ports = Ports { first: 20_000, last: 29_999 };

/// Where the step's rank 0 waits: the first host of the step (or loopback, if it is the only
/// one), at the first port that Slurm reserves for the step, or else at a port derived from the step's
/// number.
///
/// Another job may have the derived port on that host: then rank 0 says so.
///
/// # Errors
/// [`Error::Environment`](crate::Error::Environment) names `BREVITY_MASTER` when Slurm's variables do not say
/// enough.
pub(super) fn master(variables: Variables<'_>) -> Result<Master> {
    let found = step(variables).zip(host(variables));
    let (step, host) = found.ok_or_else(|| not_set("BREVITY_MASTER", MASTER))?;
    let port = match reserved_port(variables) {
        Some(port) => port,
        None => derived_port(step, variables.read("BREVITY_PORT_RANGE", PORTS, Ports::parse)?),
    };
    Ok(Master { host, port })
}

/// The step's name.
pub(super) fn step_name(variables: Variables<'_>) -> Option<String> {
    step(variables).map(|(job, step)| format!("slurm {job}.{step}"))
}

/// The numbers of job and step.
fn step(variables: Variables<'_>) -> Option<(u32, u32)> {
    let number = |name: &str| (variables.lookup)(name)?.to_str()?.parse().ok();
    Some((number("SLURM_JOB_ID")?, number("SLURM_STEP_ID")?))
}

fn host(variables: Variables<'_>) -> Option<String> {
    if on_one_host(variables) {
        return Some("127.0.0.1".into());
    }
    first_host((variables.lookup)("SLURM_STEP_NODELIST")?.to_str()?)
}

/// Whether all ranks of the step are on this host.
pub(super) fn on_one_host(variables: Variables<'_>) -> bool {
    variables.is("SLURM_STEP_NUM_NODES", "1")
}

fn reserved_port(variables: Variables<'_>) -> Option<u16> {
    let ports = (variables.lookup)("SLURM_STEP_RESV_PORTS")?;
    let first = ports.to_str()?.split([',', '-']).next()?;
    first.parse().ok().filter(|&port| port != 0)
}

/// Within the range that the user gives, if any.
fn derived_port((job, step): (u32, u32), ports: Option<Ports>) -> u16 {
    ports.unwrap_or(DERIVED).derived(job.wrapping_mul(31).wrapping_add(step))
}

/// The first host of a list as `node[01-04,07],login`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(at) = rest.find([',', '[']) {
        host.push_str(&rest[..at]);
        if rest.as_bytes()[at] == b',' {
            rest = "";
            break;
        }
        let (inside, after) = rest[at + 1..].split_once(']')?;
        host.push_str(inside.split([',', '-']).next()?);
        rest = after;
    }
    host.push_str(rest);
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (!host.is_empty() && host.bytes().all(valid)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [
            ("node7", "node7"),
            ("a,b,c", "a"),
            ("node[01-04,07],login", "node01"),
            ("node[3,5-6]", "node3"),
            ("rack[1-2]node[10-12].cluster", "rack1node10.cluster"),
            ("node[08]", "node08"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", ",", "node[1", "no de", "node[]]", "[,]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    proptest! {
        #[test]
        fn no_list_panics(list in "[a-c0-9,\\[\\] é-]{0,20}") {
            let _ = first_host(&list);
        }

        #[test]
        fn derived_ports_are_in_their_range(job: u32, step: u32) {
            prop_assert!((20_000..30_000).contains(&derived_port((job, step), None)));
            let given = Ports { first: 7, last: 9 };
            prop_assert!((7..10).contains(&derived_port((job, step), Some(given))));
        }
    }
}
