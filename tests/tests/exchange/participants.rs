//! Ranks that have no gradient in a step.

use super::*;

const COUNT: usize = 48;

fn built(group: &Group, policy: Policy, over_participants: bool) -> GradientExchange {
    let builder =
        GradientExchange::builder(group).tensor("a", [6, 8], policy).tensor("b", [5], Policy::dense());
    if over_participants { builder.average_over_participants() } else { builder }.build().unwrap()
}

/// Small integers, so that sums and divisions by 1, 2 and 4 are exact.
fn gradients(rank: u32) -> Vec<Vec<f32>> {
    vec![(0..COUNT).map(|index| (index as u32 % 5 + rank) as f32).collect(), vec![rank as f32 + 1.0; 5]]
}

/// The last ranks have nothing.
#[test]
fn averages_are_over_all_ranks_or_over_those_with_gradients() {
    for (over_participants, by_steps) in [(false, false), (false, true), (true, false), (true, true)] {
        for (world_size, with) in [(1, 1), (2, 1), (3, 2), (4, 1), (4, 4), (4, 0)] {
            for policy in [Policy::dense(), Policy::topk(1.0), Policy::gtopk(1.0)] {
                let ranks = on_local(world_size, move |group| {
                    let mut exchange = built(group, policy, over_participants);
                    let mut own = gradients(group.rank());
                    let has_gradient = group.rank() < with;
                    let empty = || vec![vec![9.0; COUNT], vec![9.0; 5]];
                    if by_steps {
                        if !has_gradient {
                            own = vec![vec![0.0; COUNT], vec![0.0; 5]];
                        }
                        let step = if has_gradient { exchange.begin() } else { exchange.begin_empty() };
                        step.unwrap().finish(&mut own).unwrap();
                    } else if has_gradient {
                        exchange.average(&mut own).unwrap();
                    } else {
                        own = empty();
                        exchange.step_empty(&mut own).unwrap();
                    }
                    own
                });
                let divisor = if over_participants { with.max(1) } else { world_size };
                for tensor in 0..2 {
                    let sum =
                        |index: usize| (0..with).map(|rank| gradients(rank)[tensor][index]).sum::<f32>();
                    let expected: Vec<f32> =
                        (0..gradients(0)[tensor].len()).map(|index| sum(index) / divisor as f32).collect();
                    for found in &ranks {
                        assert_eq!(found[tensor], expected, "{policy:?}, {with} of {world_size}");
                    }
                }
            }
        }
    }
}

/// The rank's residual is delivered, and low-rank averages are those of ranks with gradients.
#[test]
fn a_rank_without_gradient_goes_on_delivering() {
    on_local(3, |group| {
        let mut exchange = built(group, Policy::topk(0.05), true);
        exchange.average(&mut gradients(group.rank())).unwrap();
        for _ in 0..40 {
            let mut averages = gradients(0);
            exchange.step_empty(&mut averages).unwrap();
        }
        assert!(exchange.residual("a").unwrap().iter().all(|&value| value == 0.0));
    });
    let ranks = on_local(4, |group| {
        let mut exchange = built(group, Policy::low_rank(1).min_compression(0.1), true);
        let matrix: Vec<f32> =
            (0..COUNT).map(|index| (1 + index / 8) as f32 * (1 + index % 8) as f32).collect();
        let mut gradients = vec![matrix.clone(), vec![0.0; 5]];
        if group.rank() < 2 { exchange.average(&mut gradients) } else { exchange.step_empty(&mut gradients) }
            .unwrap();
        let off = gradients[0].iter().zip(&matrix).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        (off, gradients)
    });
    for (off, gradients) in &ranks {
        assert!(*off < 1e-3, "{off}");
        assert_eq!(*gradients, ranks[0].1);
    }
}

#[test]
fn other_divisors_are_a_mismatch() {
    super::mismatches::all_end_with_a_mismatch("participants", |group| {
        built(group, Policy::topk(0.5), group.rank() == 1)
    });
}
