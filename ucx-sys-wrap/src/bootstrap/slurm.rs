//! Where the ranks of a Slurm step meet without PMI and `BREVITY_MASTER`.

use super::master::MASTER;
use super::reserve::{PORTS_TRIED, Ports};
use super::variables::{PORTS, Variables, not_set};
use crate::Result;

/// Ports that are derived from the job's number: below Linux's ephemeral ports.
const DERIVED: Ports = Ports { first: 20_000, last: 29_999 };

/// Where the step's rank 0 listens: the first host of the step (or loopback, if it is the only one), and the
/// ports to try, which Slurm reserves for the step or which are derived from the step's number.
///
/// # Errors
/// [`Error::Environment`](crate::Error::Environment) names `BREVITY_MASTER` when Slurm's variables are
/// incomplete.
pub(super) fn host_and_ports(variables: Variables<'_>) -> Result<(String, Vec<u16>)> {
    let host = match on_one_host(variables) {
        true => Some("127.0.0.1".into()),
        false => (variables.lookup)("SLURM_STEP_NODELIST").and_then(|list| first_host(list.to_str()?)),
    };
    let (step, host) = step(variables).zip(host).ok_or_else(|| not_set("BREVITY_MASTER", MASTER))?;
    let reserved = (variables.lookup)("SLURM_STEP_RESV_PORTS").and_then(|ports| ports_of(ports.to_str()?));
    let ports = match reserved.filter(|ports| !ports.is_empty()) {
        Some(ports) => ports,
        None => derived_ports(step, variables.read("BREVITY_PORT_RANGE", PORTS, Ports::parse)?),
    };
    Ok((host, ports))
}

pub(super) fn step(variables: Variables<'_>) -> Option<(u32, u32)> {
    Some((variables.number("SLURM_JOB_ID")?, variables.number("SLURM_STEP_ID")?))
}

/// Whether all ranks of the step are on this host.
pub(super) fn on_one_host(variables: Variables<'_>) -> bool {
    variables.is("SLURM_STEP_NUM_NODES", "1")
}

/// The first ports of a list as `12000-12003,12010`.
fn ports_of(list: &str) -> Option<Vec<u16>> {
    let mut ports = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok().filter(|&port| port != 0)?, last.parse().ok()?);
        ports.extend((first..=last).take((PORTS_TRIED as usize).saturating_sub(ports.len())));
    }
    Some(ports)
}

/// Within the range that the user gives, if any.
fn derived_ports((job, step): (u32, u32), ports: Option<Ports>) -> Vec<u16> {
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

    #[test]
    fn the_first_ports_of_a_list() {
        for (list, ports) in [
            ("12000", Some(vec![12000])),
            ("12000-12002,12010", Some(vec![12000, 12001, 12002, 12010])),
            ("1-65535", Some((1..=16).collect())),
            ("65530-65535,7", Some((65530..=65535).chain([7]).collect())),
            ("", None),
            ("0", None),
            ("a-b", None),
            ("1-70000", None),
        ] {
            assert_eq!(ports_of(list), ports, "{list}");
        }
    }

    proptest! {
        #[test]
        fn no_list_panics(list in "[a-c0-9,\\[\\] é-]{0,20}") {
            let _ = first_host(&list);
        }

        #[test]
        fn derived_ports_are_in_their_range(job: u32, step: u32) {
            let ports = derived_ports((job, step), None);
            prop_assert!(ports.len() == 16 && ports.iter().all(|port| (20_000..30_000).contains(port)));
            let mut ports = derived_ports((job, step), Some(Ports { first: 7, last: 9 }));
            ports.sort_unstable();
            prop_assert_eq!(ports, [7, 8, 9]);
        }
    }
}
