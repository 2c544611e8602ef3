//! Dense collectives with all pairs of what a call can vary in: a small set of calls, in which each two
//! values of different factors meet in one call, if they can.
//!
//! Elements are small whole numbers, so that no order of them changes a result.

mod covering;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use brevity::collectives::dense::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Collective, Gather, Lengths, Reduce, ReduceScatter,
    Scatter,
};
use brevity::collectives::{Algorithm, Buffers, DataType, Reducer, Result};
use brevity::transport::bootstrap::Opened;
use brevity::transport::local;
use brevity::transport::shm::LocalGroup;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, ReduceOp, Settings};
use brevity_tests::{block_on, on_groups};

use covering::{Pair, covering};
use plan::{Case, FACTORS, Factor, Form, KINDS, Kind, Plan, Values, Vector, with_collective};

async fn call<C: Collective>(group: &Group, plan: &Plan, collective: C) -> Result<()> {
    let Case { input, output, expected, range } = plan.case(group.rank());
    let group = group.with_algorithm(plan.algorithm);
    let (kept, mut memory) = (input.clone(), (input, output));
    if plan.form == Form::Started {
        let (returned, result) = group.start_call(Ok(collective), memory, lend).await;
        result?;
        memory = returned;
    } else {
        group.call(&collective, lend(&mut memory))?;
    }
    let rank = group.rank();
    assert!(memory.0 == kept, "{plan:?}: the input of rank {rank} has changed");
    assert_eq!(memory.1.bytes()[range], expected, "{plan:?}, rank {rank}");
    Ok(())
}

fn lend((input, output): &mut (Option<Vector>, Vector)) -> Buffers<'_> {
    match input {
        Some(input) => Buffers::apart(input.bytes(), output.bytes_mut()),
        None => Buffers::in_place(output.bytes_mut()),
    }
}

async fn check(group: &Group, plan: &Plan) -> Result<()> {
    with_collective!(plan, group.rank(), |collective| call(group, plan, collective).await)
}

async fn check_all(group: &Group, plans: &[Plan]) {
    for plan in plans {
        let result = check(group, plan).await;
        assert!(result.is_ok(), "{plan:?}, rank {}: {result:?}", group.rank());
    }
}

/// What the ranks of a call have in common with those of others.
fn ranks_of(plan: &Plan) -> (u8, u32, Vec<u32>, bool) {
    (plan.form as u8, plan.ranks, plan.hosts(), plan.any_order)
}

/// Runs plans whose ranks are alike, one after the other.
fn run_plans(plans: Vec<Plan>) {
    let plan = plans[0];
    let settings = Settings {
        timeout: Duration::from_secs(100),
        any_order: plan.any_order,
        // Some vectors have several segments.
        segment_bytes: 256,
        ..Settings::default()
    };
    let hosts = plan.hosts();
    let opened = |opened: Opened| Group::opened(opened.with_hosts(&hosts), settings);
    if plan.form == Form::Started {
        let cluster = Cluster::new(plan.ranks, Links::new(20e-6, 1e-9));
        let ranks = run(cluster, |transport| {
            let (group, plans) = (opened(Opened::in_process(transport, None)), plans.clone());
            async move { check_all(&group, &plans).await }
        });
        return drop(ranks.unwrap());
    }
    let mut memory: Vec<Option<Arc<LocalGroup>>> = (0..plan.ranks).map(|_| None).collect();
    if plan.form == Form::Sharing {
        memory = LocalGroup::in_process(plan.ranks).unwrap().into_iter().map(Some).collect();
    }
    let ranks = local::world(plan.ranks).into_iter().zip(memory);
    let groups = ranks.map(|(rank, memory)| opened(Opened::in_process(Box::new(rank), memory)));
    on_groups(groups.collect(), move |group| block_on(check_all(group, &plans)));
}

/// Whether it is right that no call has both values. Which algorithms fit is left to their rows.
fn can_not_meet(((first, a), (second, b)): Pair) -> bool {
    let data = |index: usize| DataType::ALL[index];
    match (FACTORS[first].0, FACTORS[second].0) {
        (Factor::Collective, Factor::Algorithm) => b > 0 && !rows(KINDS[a]).contains(&Algorithm::ALL[b - 1]),
        (Factor::Collective, Factor::Type) if KINDS[a].reduces() => data(b) == DataType::Bytes,
        (Factor::Collective, factor) => !KINDS[a].has(factor),
        (Factor::Type, Factor::Operation) => !ReduceOp::ALL[b].is_defined_for(data(a)),
        (Factor::Type, Factor::AnyOrder) => data(a) == DataType::Bytes,
        (Factor::Ranks, Factor::Hosts) => a == 0 && b == 1,
        (first, _) => first == Factor::Algorithm,
    }
}

fn rows(kind: Kind) -> Vec<Algorithm> {
    let mut values: Values = [0; FACTORS.len()];
    values[0] = KINDS.iter().position(|other| *other == kind).unwrap();
    with_collective!(&Plan::new(&values), 0, |collective| algorithms(&collective))
}

fn algorithms<C: Collective>(_: &C) -> Vec<Algorithm> {
    C::ROWS.iter().map(|row| row.algorithm).collect()
}

#[test]
fn all_pairs_of_what_calls_vary_in() {
    let (calls, alone) = covering();
    println!("{} calls; {} pairs can't meet", calls.len(), alone.len());
    for pair in alone {
        let ((first, a), (second, b)) = pair;
        let [first, second] = [first, second].map(|factor| FACTORS[factor].0);
        assert!(can_not_meet(pair), "no call has {first:?} {a} and {second:?} {b}");
    }
    let mut plans: Vec<Plan> = calls.iter().map(Plan::new).collect();
    plans.sort_by_key(ranks_of);
    for alike in plans.chunk_by(|a, b| ranks_of(a) == ranks_of(b)) {
        run_plans(alike.to_vec());
    }
}
