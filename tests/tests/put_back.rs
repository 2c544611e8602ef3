//! What gTop-k merges drop, and what rounding takes away from sums, goes to residuals that may have no room
//! for it: then the step is left out.

use brevity::compress::quantise::Values;
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

/// Rank 0 owns index 0, where its own value stays in its residual, just below the largest number. The sum of
/// the others' values there is no number of the format: rounding leaves 5e35, for which there is no room.
#[test]
fn a_residual_without_room_for_what_rounding_leaves_of_a_sum_leaves_the_step_out() {
    const LARGE: f32 = f32::MAX / (1.0 + f32::EPSILON);
    // The largest values cancel.
    let given = |rank: u32| -> [f32; 8] {
        let power = 2.0_f32.powi(127);
        match rank {
            0 => [LARGE, 0.0, 0.0, 0.0, 0.0, 0.0, f32::MAX, f32::MAX],
            1 => [power, 0.0, 0.0, 0.0, 0.0, 0.0, -f32::MAX, 0.0],
            _ => [0.75 / 256.0 * power, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -f32::MAX],
        }
    };
    let settings = Settings { wishes: "top-k-all-reduce:direct".parse().unwrap(), ..Settings::default() };
    for policy in [Policy::oktopk(0.25), Policy::topk(0.25)] {
        on_host(3, settings, move |group| {
            let build = |values| {
                let builder = GradientExchange::builder(group);
                builder.tensor("weight", [8], policy.values(values)).build().unwrap()
            };
            let (own, mut exchange) = (given(group.rank()), build(Values::Bf16));
            let mut gradients = [own];
            let error = exchange.average(&mut gradients).unwrap_err();
            let is_named = match &error {
                Error::NonFinite { rank: 0, tensor } => tensor == "weight",
                _ => false,
            };
            assert!(is_named, "{policy}: {error}");
            assert_eq!(gradients, [own], "{policy}: applied");
            assert_eq!(exchange.residual("weight").unwrap(), [0.0; 8], "{policy}");
            // Where there is room, what is rounded away is kept.
            exchange.average(&mut [own.map(|value| 0.5 * value)]).unwrap();
            let left = exchange.residual("weight").unwrap()[0];
            assert!(group.rank() > 0 || left > 0.5 * LARGE, "{policy}: {left}");
            // Sums that are not rounded leave nothing.
            let mut exact = build(Values::F32);
            exact.average(&mut gradients).unwrap();
            let expected = if group.rank() == 0 { LARGE } else { 0.0 };
            assert_eq!(exact.residual("weight").unwrap()[0], expected, "{policy}");
        });
    }
}
