//! What gTop-k merges drop goes to residuals that may have no room for it: then the step is left out.

use brevity::{Error, GradientExchange, Policy, PutBack, Settings};
use brevity_tests::{on_host, on_local};

const COUNT: usize = 4;

/// The entries of one rank's gradient.
type Entries = &'static [(usize, f32)];

fn dense(entries: Entries) -> [f32; COUNT] {
    let mut gradient = [0.0; COUNT];
    entries.iter().for_each(|&(index, value)| gradient[index] = value);
    gradient
}

/// In the first step, rank `full` keeps 2e38 at index 3; in the second, its merge drops 2.5e38 there.
struct Case {
    rule: PutBack,
    first: &'static [Entries],
    second: &'static [Entries],
    full: u32,
}

const CASES: [Case; 2] = [
    Case {
        rule: PutBack::MergerKeeps,
        first: &[&[(0, 3e38), (3, 2e38)], &[]],
        second: &[&[(0, 3e38)], &[(3, 2.5e38)]],
        full: 0,
    },
    // Index 3 is in the result, because rank 0 has more there.
    Case {
        rule: PutBack::Conserving,
        first: &[&[], &[], &[(0, 3e38), (3, 2e38)], &[]],
        second: &[&[(3, 3.2e38)], &[(1, 1.0)], &[(0, 3e38)], &[(3, 2.5e38)]],
        full: 2,
    },
];

#[test]
fn a_residual_without_room_leaves_the_step_out_on_all_ranks() {
    for Case { rule, first, second, full } in CASES {
        let body = move |group: &brevity::Group| {
            let rank = group.rank() as usize;
            let policy = Policy::gtopk(1.0 / COUNT as f64).put_back(rule);
            let exchange = GradientExchange::builder(group).tensor("weight", [COUNT], policy);
            let mut exchange = exchange.build().unwrap();
            exchange.average(&mut [dense(first[rank])]).unwrap();
            let before = exchange.residual("weight").unwrap();
            let mut gradients = [dense(second[rank])];
            let error = exchange.average(&mut gradients).unwrap_err();
            assert_eq!(gradients, [dense(second[rank])], "{rule:?}: applied");
            assert_eq!(exchange.residual("weight").unwrap(), before, "{rule:?}");
            // What was kept is sent in the next step.
            let mut nothing = [[0.0; COUNT]];
            exchange.average(&mut nothing).unwrap();
            assert_eq!(nothing, [dense(&[(3, 2e38)]).map(|sum| sum / group.world_size() as f32)], "{rule:?}");
            (error, before)
        };
        let world_size = first.len() as u32;
        for ranks in [on_local(world_size, body), on_host(world_size, Settings::default(), body)] {
            for (rank, (error, before)) in (0..).zip(ranks) {
                let is_named = match &error {
                    Error::NonFinite { rank, tensor } => *rank == full && tensor == "weight",
                    _ => false,
                };
                assert!(is_named, "{rule:?}: {error}");
                assert_eq!(before, if rank == full { dense(&[(3, 2e38)]) } else { dense(&[]) }, "{rule:?}");
            }
        }
    }
}
