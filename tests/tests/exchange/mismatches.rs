//! Exchanges that were not built alike on all ranks.

use super::*;

/// Ranks that have built different exchanges get an error, for every kind of tensor.
#[test]
fn other_plans_are_a_mismatch() {
    for (name, policy) in &POLICIES[1..] {
        let policy = *policy;
        all_end_with_a_mismatch(name, move |group| {
            let policy = if group.rank() == 1 { Policy::dense() } else { policy };
            exchange(group, policy)
        });
    }
}

/// The factors of both have the same length.
#[test]
fn a_matrix_and_its_transpose_are_a_mismatch() {
    all_end_with_a_mismatch("shapes", |group| {
        let shape = if group.rank() == 1 { [64, 32] } else { [32, 64] };
        GradientExchange::builder(group).tensor("weight", shape, Policy::low_rank(2)).build().unwrap()
    });
}

#[test]
fn tensors_in_another_order_are_a_mismatch() {
    for policy in [Policy::dense(), Policy::topk(0.5)] {
        all_end_with_a_mismatch("order", move |group| {
            let tensors = if group.rank() == 1 { [("a", 5), ("b", 3)] } else { [("b", 3), ("a", 5)] };
            let builder = GradientExchange::builder(group);
            let add = |builder: ExchangeBuilder, (name, count)| builder.tensor(name, [count], policy);
            tensors.into_iter().fold(builder, add).build().unwrap()
        });
    }
}

/// Some ranks would return a result, and others not.
#[test]
fn another_density_on_one_rank_is_a_mismatch() {
    let methods: [fn(f64) -> Policy; 5] =
        [Policy::topk, Policy::gtopk, Policy::oktopk, Policy::random_k, Policy::random_block];
    for policy in methods {
        for forgets in [false, true] {
            all_end_with_a_mismatch("density", move |group| {
                let odd = group.rank() == 1;
                let density = if odd && !forgets { 0.5 } else { 0.25 };
                let builder = GradientExchange::builder(group).tensor("a", [64], policy(density));
                let mut exchange = builder.build().unwrap();
                if forgets && !odd {
                    exchange.set_density("a", 0.5).unwrap();
                }
                exchange
            });
        }
    }
}

/// Some pairs have one format in common, with other magnitudes, columns or levels.
#[test]
fn other_values_are_a_mismatch() {
    let pairs = [
        [Values::F32, Values::Bf16],
        [Values::OneBit(Magnitude::Mean), Values::OneBit(Magnitude::Min)],
        [Values::F16, Values::Bf16],
        [Values::OneBitColumns(7), Values::OneBitColumns(8)],
        [Values::Qsgd(7), Values::Qsgd(6)],
        [Values::Qsgd(7), Values::Ternary],
    ];
    let policies: [fn(Values) -> Policy; 2] =
        [|values| Policy::topk(0.25).values(values), |values| Policy::gtopk(0.25).values(values)];
    for (pair, policy) in pairs.into_iter().flat_map(|pair| policies.map(|policy| (pair, policy))) {
        all_end_with_a_mismatch("values", move |group| {
            let policy = policy(pair[usize::from(group.rank() == 1)]);
            GradientExchange::builder(group).tensor("a", [64], policy).build().unwrap()
        });
    }
    for pair in pairs.into_iter().skip(3) {
        all_end_with_a_mismatch("quantised values", move |group| {
            let policy = Policy::quantised(pair[usize::from(group.rank() == 1)]);
            GradientExchange::builder(group).tensor("a", [64], policy).build().unwrap()
        });
    }
}

/// Also if one leaves it open, and has chosen the same.
#[test]
fn other_wires_are_a_mismatch() {
    let open = Policy::gtopk(0.25);
    let (pairs, packed) = (open.pairs(), open.values(Values::F32));
    for pair in [[pairs, packed], [open, packed], [pairs, open]] {
        all_end_with_a_mismatch("wires", move |group| {
            let policy = pair[usize::from(group.rank() == 1)];
            GradientExchange::builder(group).tensor("a", [64], policy).build().unwrap()
        });
    }
}

/// Ranks that draw from other seeds end with other matrices if a factor is ever drawn again, and sum values
/// of other places.
#[test]
fn other_seeds_are_a_mismatch() {
    for policy in [Policy::low_rank(2), Policy::random_k(0.1), Policy::random_block(0.1)] {
        all_end_with_a_mismatch("seeds", move |group| {
            let builder = GradientExchange::builder(group).seed(u64::from(group.rank() == 1));
            builder.tensor("weight", SHAPE, policy).build().unwrap()
        });
    }
}

/// Three ranks build an exchange and average: each gets the mismatch, or the rank that closed the group for
/// it.
pub(super) fn all_end_with_a_mismatch(
    what: &str,
    build: impl Fn(&Group) -> GradientExchange + Clone + Send + 'static,
) {
    for between in BOTH {
        let build = build.clone();
        let errors = between.run(3, move |group| {
            let mut exchange = build(group);
            let mut gradients: Vec<Vec<f32>> =
                exchange.tensors().map(|(_, count)| vec![1.0; count]).collect();
            exchange.average(&mut gradients).unwrap_err()
        });
        let is_named = |error: &Error| matches!(error, Error::Collective(Collective::Mismatch { .. }));
        let is_end = |error: &Error| matches!(error, Error::Collective(Collective::Differs { .. }));
        assert!(errors.iter().any(is_named), "{what}, {between:?}: {errors:?}");
        assert!(
            errors.iter().all(|error| is_named(error) || is_end(error)),
            "{what}, {between:?}: {errors:?}"
        );
    }
}
