//! What decides which algorithms are taken: rank 0's settings, and what it measures.

use brevity::{Group, Join, Machine, Settings};

use super::{AMPLE, as_ranks, loopback_id};

/// What each of three ranks sees, after a sum of all.
fn joined<R: Send + 'static>(
    settings: impl Fn(u32) -> Settings + Clone + Send + 'static,
    look: impl Fn(&Group) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let id = loopback_id();
    as_ranks(0..3, move |rank| {
        let join = Join::new(rank, 3).id(id.clone()).timeout(AMPLE).settings(settings(rank));
        let group = join.join().unwrap();
        let mut sum = [rank];
        group.all_reduce(&mut sum, brevity::ReduceOp::Sum).unwrap();
        assert_eq!(sum, [3]);
        let found = look(&group);
        group.barrier().unwrap();
        found
    })
}

fn in_force(group: &Group, name: &str) -> String {
    let settings = group.settings_in_force();
    settings.into_iter().find_map(|(found, value)| (found == name).then_some(value)).unwrap()
}

#[test]
fn settings_of_rank_0_count() {
    let machine = Machine::uniform(1e-3, 1e-8);
    let wishes = "all-reduce:halving".parse().unwrap();
    let first = Settings {
        any_order: true,
        wishes,
        segment_bytes: 4096,
        machine: Some(machine),
        ..Settings::default()
    };
    let other = Settings { wishes: "all-reduce:direct".parse().unwrap(), ..Settings::default() };
    let settings = move |rank| match rank {
        0 => first,
        1 => Settings::default(),
        _ => other,
    };
    let seen = joined(settings, |group| {
        let part = group.duplicate().unwrap();
        ["any_order", "algorithm", "segment", "machine"].map(|name| {
            assert_eq!(in_force(&part, name), in_force(group, name), "a part of the group");
            in_force(group, name)
        })
    });
    let expected = ["1", "all-reduce:halving", "4096", &machine.to_string()];
    assert!(seen.iter().all(|rank| *rank == expected), "{seen:?}");
}

#[test]
fn what_is_given_elsewhere_does_not_count() {
    let other = Settings {
        any_order: true,
        wishes: "all-reduce:direct".parse().unwrap(),
        machine: Some(Machine::default()),
        ..Settings::default()
    };
    let settings = move |rank| if rank == 2 { other } else { Settings::default() };
    let seen = joined(settings, |group| ["any_order", "algorithm"].map(|name| in_force(group, name)));
    assert!(seen.iter().all(|rank| *rank == ["0", ""]), "{seen:?}");
}

#[test]
fn rank_0_measures_for_all() {
    let seen = joined(|_| Settings::default(), |group| in_force(group, "machine"));
    let machine: Machine = seen[0].parse().unwrap();
    assert!(seen.iter().all(|rank| *rank == seen[0]), "{seen:?}");
    assert_ne!(machine, Machine::default());
    // A message between threads of this host, however busy that is.
    assert!((20e-9..50e-3).contains(&machine.inside.alpha), "{machine}");
    assert!(machine.inside.overhead <= machine.inside.alpha, "{machine}");
    assert!((1e-12..1e-6).contains(&machine.inside.beta), "{machine}");
    assert!((1e-12..1e-8).contains(&machine.reduce) && (1e-12..1e-8).contains(&machine.copy), "{machine}");
}
