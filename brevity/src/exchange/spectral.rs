//! Singular components as a message. Without the feature `svd` no tensor has them.

use super::encoding::{Draw, Shape};

/// Writes the largest components, or a sample of them, as their packed factors; components that there are not
/// are zeros. Returns whether all values are finite.
#[cfg(feature = "svd")]
pub(super) fn encode(values: &[f32], shape: Shape, draw: Option<Draw>, message: &mut [f32]) -> bool {
    use brevity_compress::generator::Generator;
    use brevity_compress::low_rank::spectral::{best_low_rank, spectral_atomo};

    let Shape { rows, cols, rank } = shape;
    message.fill(0.0);
    let components = match draw {
        None => best_low_rank(values, rows, cols, rank),
        Some(Draw { seed, stream }) => {
            spectral_atomo(values, rows, cols, rank, &mut Generator::for_stream(seed, stream))
        }
    };
    let Ok(components) = components else { return false };
    let (p, q) = message.split_at_mut(rows * rank);
    for (to, from) in [(p, components.p()), (q, components.q())] {
        let rows = from.chunks_exact(components.count().max(1));
        to.chunks_exact_mut(rank).zip(rows).for_each(|(to, from)| to[..from.len()].copy_from_slice(from));
    }
    message.iter().all(|value| value.is_finite())
}

#[cfg(not(feature = "svd"))]
pub(super) fn encode(_: &[f32], _: Shape, _: Option<Draw>, message: &mut [f32]) -> bool {
    // Such a policy is refused when the exchange is built.
    message.fill(f32::NAN);
    false
}
