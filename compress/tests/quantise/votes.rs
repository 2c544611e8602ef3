//! Signs with majority vote.

use brevity_compress::Error;
use brevity_compress::generator::Generator;
use brevity_compress::quantise::{Signs, Votes, encode_signs};
use proptest::prelude::*;

use super::shapes::shaped;

fn sign(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { value.signum() }
}

fn encoded(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![7; 3];
    encode_signs(values, &mut bytes).unwrap();
    bytes
}

proptest! {
    #[test]
    fn votes_are_counted(n in 0_usize..1100, ranks in 1_u32..20, zeros in 0_u64..3, seed: u64) {
        let mut generator = Generator::new(seed);
        let (mut votes, mut counts) = (Votes::new(n), vec![0.0_f32; n]);
        for round in 0..2 {
            votes.clear();
            counts.fill(0.0);
            for rank in 0..ranks {
                let mut values = vec![0.0; n];
                generator.fill_normal(&mut values);
                if zeros == 2 || zeros == 1 && rank % 2 == round {
                    let set: Vec<bool> = values.iter().map(|_| generator.below(3) == 0).collect();
                    values.iter_mut().zip(set).filter(|(_, set)| *set).for_each(|(value, _)| *value *= 0.0);
                }
                counts.iter_mut().zip(&values).for_each(|(count, &value)| *count += sign(value));
                votes.add(Signs::new(n, &encoded(&values)).unwrap()).unwrap();
            }
            let mut majority = vec![9.0; n];
            votes.majority(&mut majority).unwrap();
            prop_assert_eq!(majority, counts.iter().copied().map(sign).collect::<Vec<f32>>());
            prop_assert_eq!(votes.ranks(), ranks);
        }
    }

    #[test]
    fn signs_survive_their_bytes(values in shaped(0..=1300)) {
        let bytes = encoded(&values);
        let planes = if values.contains(&0.0) { 2 } else { 1 };
        prop_assert_eq!(bytes.len(), 8 + planes * values.len().div_ceil(8));
        let mut signs = vec![9.0; values.len()];
        Signs::new(values.len(), &bytes).unwrap().decode_into(&mut signs).unwrap();
        let expected: Vec<f32> = values.iter().copied().map(sign).collect();
        prop_assert_eq!(&signs, &expected);
        // A majority is sent on as signs.
        prop_assert_eq!(encoded(&signs).len(), bytes.len());
    }

    /// Whatever bits arrive, a zero has no sign, and no count is below 0.
    #[test]
    fn hostile_signs_are_refused_or_counted(
        n in 0_usize..600,
        head in prop_oneof![0_u8..4, any::<u8>()],
        bits in prop::collection::vec(any::<u8>(), 0..160),
    ) {
        let mut bytes = vec![0; 8];
        bytes[0] = head;
        bytes.extend(&bits);
        let plane = n.div_ceil(8);
        let message = Signs::new(n, &bytes);
        prop_assert_eq!(message.is_ok(), head <= 1 && bits.len() == plane * (1 + usize::from(head)));
        if let Ok(message) = message {
            let (mut votes, mut majority, mut signs) = (Votes::new(n), vec![9.0; n], vec![9.0; n]);
            votes.add(message).unwrap();
            votes.majority(&mut majority).unwrap();
            message.decode_into(&mut signs).unwrap();
            prop_assert_eq!(majority, signs);
        }
    }
}

#[test]
fn zeros_vote_for_nothing() {
    let ranks = [[0.0, -0.0, 0.0, -1.0, 0.0, 2.0], [0.0, 0.0, -3.0, 1.0, 1e-42, -1.0]];
    let (mut votes, mut majority) = (Votes::new(6), [9.0; 6]);
    for values in ranks.iter().chain([&ranks[0]]) {
        votes.add(Signs::new(6, &encoded(values)).unwrap()).unwrap();
    }
    votes.majority(&mut majority).unwrap();
    assert_eq!(majority, [0.0, 0.0, -1.0, -1.0, 1.0, 1.0]);
    assert!(majority.iter().all(|sign| *sign != 0.0 || sign.is_sign_positive()));
}

#[test]
fn what_is_no_vote_is_refused() {
    let mut bytes = Vec::new();
    let found = encode_signs(&[1.0, f32::NAN, 2.0, f32::INFINITY], &mut bytes);
    assert!(matches!(found, Err(Error::NonFinite { index: 1, .. })), "{found:?}");
    let far: Vec<f32> = (0..700).map(|i| if i == 600 { f32::NEG_INFINITY } else { 1.0 }).collect();
    assert_eq!(
        encode_signs(&far, &mut bytes),
        Err(Error::NonFinite { index: 600, value: f32::NEG_INFINITY })
    );
    let bytes = encoded(&[1.0; 9]);
    let mut votes = Votes::new(10);
    let found = votes.add(Signs::new(9, &bytes).unwrap());
    assert_eq!(found, Err(Error::LengthMismatch { expected: 10, found: 9 }));
    assert_eq!(votes.ranks(), 0);
    for (count, bytes) in [(17, &bytes[..]), (9, &bytes[..9]), (0, &bytes[..7]), (usize::MAX, &bytes)] {
        assert!(matches!(Signs::new(count, bytes), Err(Error::Malformed { .. })), "{count}");
    }
}
