//! Saved states of ranks on some hosts go on in another number of ranks, on other hosts.

use std::sync::Arc;

use brevity::{GradientExchange, Policy};

use super::*;

const POLICIES: [&str; 4] = [
    "topk:0.1,hierarchical=yes",
    "gtopk:0.1,hierarchical=yes",
    "gtopk:0.1,put-back=merger-keeps,hierarchical=yes",
    "topk:0.1,values=bf16,hierarchical=yes",
];

/// The hosts of the ranks that saved, and of those that go on.
const CHANGES: [(&[u32], &[u32]); 7] = [
    (&[0, 0, 1, 1], &[0, 0, 1]),
    (&[0, 0, 1, 1], &[0, 1, 1]),
    (&[0, 1, 0, 1], &[0, 1]),
    (&[0, 0, 0, 1, 1, 2], &[0, 0, 1, 1]),
    (&[0, 0, 1, 1, 1], &[0]),
    (&[0, 0, 1], &[0, 0, 1, 1]),
    (&[0, 1, 2], &[0, 0]),
];

/// Whole numbers that every number of ranks up to 6 divides, so that averages are exact.
fn gradient(rank: u32, step: u32) -> Vec<f32> {
    oracle::vector(rank + 100 * step, COUNT).into_iter().map(|value| 60.0 * value).collect()
}

fn built(group: &Group, text: &str) -> GradientExchange {
    let policy: Policy = text.parse().unwrap();
    GradientExchange::builder(group).tensor("weight", [COUNT], policy).build().unwrap()
}

/// Some steps, and what they deliver on all ranks together.
async fn steps(
    mut exchange: GradientExchange,
    numbers: std::ops::Range<u32>,
) -> (GradientExchange, Vec<f32>) {
    let (rank, ranks) = (exchange.group().rank(), exchange.group().world_size() as f32);
    let mut delivered = vec![0.0; COUNT];
    for number in numbers {
        let ((after, averages), outcome) = exchange.start(vec![gradient(rank, number)]).await;
        outcome.unwrap();
        exchange = after;
        delivered.iter_mut().zip(&averages[0]).for_each(|(all, average)| *all += ranks * average);
    }
    (exchange, delivered)
}

/// Also after a step that has failed: every rank of a host has something that waits then.
#[test]
fn states_of_several_hosts_go_on_in_other_ranks() {
    for ((before, after), text) in CHANGES.into_iter().flat_map(|change| POLICIES.map(|text| (change, text)))
    {
        let saved = on_hosts(before, None, |group| async move {
            let (mut exchange, delivered) = steps(built(&group, text), 0..4).await;
            // All have ended their steps then; another one may have aborted already.
            drop(group.start_barrier().await);
            group.abort();
            exchange.average(&mut [gradient(group.rank(), 4)]).unwrap_err();
            let mut state = Vec::new();
            exchange.save(&mut state).unwrap();
            (state, delivered)
        });
        let early = saved[0].1.clone();
        let states: Arc<Vec<_>> = Arc::new(saved.into_iter().map(|(state, _)| state).collect());
        let found = on_hosts(after, None, |group| {
            let states = Arc::clone(&states);
            async move {
                let (mut exchange, (rank, ranks)) = (built(&group, text), (group.rank(), group.world_size()));
                for (of, state) in (0..).zip(&*states).skip(rank as usize).step_by(ranks as usize) {
                    if of == rank {
                        exchange.load_of(of, &mut &state[..]).unwrap();
                    } else {
                        exchange.take_over(of, &mut &state[..]).unwrap();
                    }
                }
                if ranks as usize > states.len() {
                    exchange.set_steps(4).unwrap();
                }
                let waiting = exchange.residual("weight").unwrap();
                let (exchange, delivered) = steps(exchange, 5..9).await;
                (waiting, delivered, exchange.residual("weight").unwrap())
            }
        });
        let about = format!("{text}, {before:?} to {after:?}");
        assert!(found.iter().all(|(_, delivered, _)| *delivered == found[0].1), "{about}: ranks differ");
        let given = |ranks: usize, steps: std::ops::Range<u32>| -> Vec<Vec<f32>> {
            let ranks = 0..ranks as u32;
            ranks.flat_map(|rank| steps.clone().map(move |number| gradient(rank, number))).collect()
        };
        let (first, last) = (given(before.len(), 0..5), given(after.len(), 5..9));
        let mut parts: Vec<_> = found.iter().map(|(waiting, ..)| waiting.clone()).collect();
        parts.push(early.clone());
        assert_eq!(oracle::sum(&parts), oracle::sum(&first), "{about}: what is taken over");
        let mut parts: Vec<_> = found.iter().map(|(.., left)| left.clone()).collect();
        parts.extend([early, found[0].1.clone()]);
        assert_eq!(oracle::sum(&parts), oracle::sum(&[first, last].concat()), "{about}");
    }
}
