//! Signs with majority vote.

use brevity_compress::generator::Generator;
use brevity_compress::quantise::{Encoded, Format, Quantiser, Sign, Votes};
use proptest::prelude::*;

proptest! {
    #[test]
    fn votes_are_counted(n in 0_usize..1100, ranks in 1_u32..20, seed: u64) {
        let mut generator = Generator::new(seed);
        let (mut votes, mut counts) = (Votes::new(n), vec![0_i32; n]);
        for _ in 0..ranks {
            let mut values = vec![0.0; n];
            generator.fill_normal(&mut values);
            counts.iter_mut().zip(&values).for_each(|(count, v)| *count += if *v < 0.0 { -1 } else { 1 });
            let mut bytes = Vec::new();
            Sign::default().encode(&values, &mut bytes).unwrap();
            votes.add(Encoded::new(Format::Sign, n, &bytes).unwrap()).unwrap();
        }
        let mut majority = vec![9.0; n];
        votes.majority(&mut majority).unwrap();
        let expected: Vec<f32> = counts.iter().map(|count| count.signum() as f32).collect();
        prop_assert_eq!(majority, expected);
        votes.clear();
        votes.majority(&mut counts.iter().map(|_| 0.0).collect::<Vec<f32>>()).unwrap();
        prop_assert_eq!(votes.ranks(), 0);
    }
}
