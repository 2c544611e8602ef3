//! Sparse tensors that share a bucket.

use brevity::compress::feedback::Residual;
use brevity::compress::select::TopKScratch;
use brevity::compress::{Density, SparseVec};

use super::*;

/// Tensors of all lengths, an empty one and one without company among them.
const COUNTS: [usize; 7] = [40, 1, 0, 300, 7, 1000, 64];

const DENSITY: f64 = 0.06;

/// An exchange of sparse tensors, with so many bytes a bucket.
fn sparse(group: &Group, policy: Policy, bytes: usize) -> GradientExchange {
    let builder = GradientExchange::builder(group).bucket_bytes(bytes);
    let add = |builder: ExchangeBuilder, (tensor, count): (usize, usize)| {
        let policy = if tensor == 3 { Policy::topk(0.5).values(Values::F16) } else { policy };
        builder.tensor(format!("t{tensor}"), [count], policy)
    };
    COUNTS.into_iter().enumerate().fold(builder, add).build().unwrap()
}

fn inputs(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let all = (0..).zip(COUNTS);
    all.map(|(tensor, count)| oracle::vector(rank + 10 * tensor + 1000 * step, count)).collect()
}

fn bits(gradients: &[Vec<f32>]) -> Vec<u32> {
    gradients.iter().flatten().map(|value| value.to_bits()).collect()
}

fn residuals(exchange: &GradientExchange) -> Vec<Vec<f32>> {
    (0..COUNTS.len()).map(|tensor| exchange.residual(&format!("t{tensor}")).unwrap()).collect()
}

/// What each rank selects of a tensor is all delivered: the other tensors of its bucket change no bit.
#[test]
fn buckets_do_not_change_what_is_all_delivered() {
    let sizes = [1, 2, 3, 5].into_iter().flat_map(|size| [4, 700, 1 << 20].map(|bytes| (size, bytes)));
    let policies = [
        Policy::topk(DENSITY),
        Policy::random_k(DENSITY),
        Policy::random_block(DENSITY),
        Policy::block(DENSITY),
    ];
    for ((world_size, bytes), policy) in sizes.flat_map(|size| policies.map(|policy| (size, policy))) {
        let ranks = on_local(world_size, move |group| {
            let (mut alone, mut shared) = (sparse(group, policy, 0), sparse(group, policy, bytes));
            for step in 0..4 {
                let (mut expected, mut found) = (inputs(group.rank(), step), inputs(group.rank(), step));
                alone.average(&mut expected).unwrap();
                shared.average(&mut found).unwrap();
                assert_eq!(bits(&found), bits(&expected), "step {step}, {bytes} bytes");
                assert_eq!(bits(&residuals(&shared)), bits(&residuals(&alone)), "step {step}, {bytes} bytes");
            }
            bits(&residuals(&shared))
        });
        assert_eq!(ranks.len(), world_size as usize);
    }
}

/// Of a bucket, gTop-k delivers the largest of the sums of all its tensors together.
#[test]
fn gtop_k_of_a_bucket_is_that_of_one_vector() {
    const SHAPES: [usize; 3] = [50, 3, 400];
    let total: usize = SHAPES.iter().sum();
    for world_size in 1..=5 {
        let ranks = on_local(world_size, move |group| {
            let builder = GradientExchange::builder(group);
            let add = |builder: ExchangeBuilder, (tensor, count): (usize, usize)| {
                builder.tensor(tensor.to_string(), [count], Policy::gtopk(DENSITY))
            };
            let mut exchange = SHAPES.into_iter().enumerate().fold(builder, add).build().unwrap();
            let mut reference = SHAPES.map(Residual::new);
            for step in 0..4 {
                let input = |tensor: usize| {
                    oracle::vector(group.rank() + 7 * tensor as u32 + 99 * step, SHAPES[tensor])
                };
                let mut gradients: Vec<Vec<f32>> = (0..SHAPES.len()).map(input).collect();
                let (mut local, mut k, mut start) = (SparseVec::new(total), 0, 0);
                for (residual, gradient) in reference.iter_mut().zip(&gradients) {
                    let own_k = Density::new(DENSITY).unwrap().entries(gradient.len());
                    let mut out = SparseVec::new(0);
                    residual.feed_top_k(&gradient[..], own_k, &mut out, &mut TopKScratch::new()).unwrap();
                    out.iter().for_each(|(index, value)| local.push(start + index, value));
                    (k, start) = (k + own_k, start + gradient.len() as u32);
                }
                let outcome = group.gtopk_all_reduce(local.view(), k, PutBack::Conserving).unwrap();
                exchange.average(&mut gradients).unwrap();
                let mut expected = outcome.result.to_dense();
                expected.iter_mut().for_each(|value| *value /= world_size as f32);
                assert_eq!(gradients.concat(), expected, "step {step}");
                let mut start = 0;
                for (tensor, residual) in reference.iter_mut().enumerate() {
                    let own = outcome.put_back.view().within(start..start + SHAPES[tensor]);
                    let indices = own.indices().iter().map(|index| index - start as u32).collect();
                    let own = SparseVec::from_parts(SHAPES[tensor], indices, own.values().to_vec()).unwrap();
                    residual.put_back(own.view()).unwrap();
                    assert_eq!(
                        exchange.residual(&tensor.to_string()).unwrap(),
                        residual.values(),
                        "step {step}"
                    );
                    start += SHAPES[tensor];
                }
            }
            bits(&[exchange.residual("2").unwrap()])
        });
        assert_eq!(ranks.len(), world_size as usize);
    }
}

/// Neither a value that is not finite, nor a sum, is blamed on another tensor of the bucket.
#[test]
fn errors_name_the_tensor_of_a_bucket() {
    let policies = [
        Policy::topk(1.0),
        Policy::gtopk(1.0),
        Policy::oktopk(1.0),
        Policy::random_k(1.0),
        Policy::random_block(1.0),
        Policy::block(1.0),
    ];
    for (policy, tensor) in policies.into_iter().flat_map(|policy| [0, 4, 6].map(|t| (policy, t))) {
        let named = format!("t{tensor}");
        let expected = named.clone();
        let ranks = on_local(3, move |group| {
            let mut exchange = sparse(group, policy, 1 << 20);
            let mut gradients: Vec<Vec<f32>> = COUNTS.map(|count| vec![1.0; count]).into();
            if group.rank() == 2 {
                gradients[tensor][0] = f32::NAN;
            }
            let not_finite = exchange.average(&mut gradients).unwrap_err();
            assert!(residuals(&exchange).concat().iter().all(|&value| value == 0.0), "the step is left out");
            let mut gradients: Vec<Vec<f32>> = COUNTS.map(|count| vec![1.0; count]).into();
            *gradients[tensor].last_mut().unwrap() = f32::MAX;
            let overflow = exchange.average(&mut gradients).unwrap_err();
            assert!(residuals(&exchange).concat().iter().all(|&value| value == 0.0), "the step is left out");
            (not_finite, overflow)
        });
        for (not_finite, overflow) in ranks {
            assert!(
                matches!(&not_finite, Error::NonFinite { rank: 2, tensor } if *tensor == expected),
                "{not_finite}"
            );
            let is_named = match &overflow {
                Error::NonFinite { tensor, .. } | Error::Overflow { tensor } => *tensor == named,
                _ => false,
            };
            assert!(is_named, "{overflow}");
        }
    }
}

/// A state does not know of buckets.
#[test]
fn a_state_fits_other_buckets() {
    let sizes = [[0, 1 << 20], [1 << 20, 0], [400, 3000]].into_iter();
    let policies = [Policy::topk(DENSITY), Policy::random_k(DENSITY), Policy::block(DENSITY)];
    for (sizes, policy) in sizes.flat_map(|sizes| policies.map(|policy| (sizes, policy))) {
        on_local(2, move |group| {
            let [mut saved, mut loaded] = sizes.map(|bytes| sparse(group, policy, bytes));
            saved.average(&mut inputs(group.rank(), 0)).unwrap();
            let mut state = Vec::new();
            saved.save(&mut state).unwrap();
            loaded.load(&mut &state[..]).unwrap();
            assert_eq!(bits(&residuals(&loaded)), bits(&residuals(&saved)));
            let (mut expected, mut found) = (inputs(group.rank(), 1), inputs(group.rank(), 1));
            saved.average(&mut expected).unwrap();
            loaded.average(&mut found).unwrap();
            assert_eq!(bits(&found), bits(&expected));
        });
    }
}

#[test]
fn other_buckets_are_a_mismatch() {
    super::mismatches::all_end_with_a_mismatch("buckets", |group| {
        sparse(group, Policy::gtopk(DENSITY), if group.rank() == 1 { 0 } else { 1 << 20 })
    });
}

/// The density of one tensor of a bucket changes what is selected of it alone.
#[test]
fn densities_of_a_bucket_change_one_by_one() {
    on_local(2, |group| {
        let mut exchange = sparse(group, Policy::topk(DENSITY), 1 << 20);
        exchange.set_density("t5", 1.0).unwrap();
        exchange.average(&mut inputs(group.rank(), 0)).unwrap();
        let left = residuals(&exchange);
        assert!(left[5].iter().all(|&value| value == 0.0));
        assert!(left[6].iter().any(|&value| value != 0.0));
    });
}

/// A scale is that of one tensor: small values do not travel at the magnitude of large ones.
#[test]
fn formats_with_scales_do_not_mix_tensors() {
    for values in [Values::OneBit(Magnitude::Mean), Values::TwoBit(Magnitude::Mean), Values::EightBit] {
        on_local(2, move |group| {
            let policy = Policy::topk(1.0).values(values);
            let builder = GradientExchange::builder(group).tensor("large", [16], policy);
            let mut exchange = builder.tensor("little", [16], policy).build().unwrap();
            let mut gradients = [vec![1000.0; 16], vec![0.5; 16]];
            exchange.average(&mut gradients).unwrap();
            assert_eq!(gradients, [vec![1000.0; 16], vec![0.5; 16]], "{values}");
        });
    }
}
