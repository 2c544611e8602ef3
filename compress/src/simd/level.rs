//! Detects the CPU's instruction sets once.

use std::sync::OnceLock;

/// An instruction set that this CPU has. Values exist only after the CPU was found to have it, which makes
/// calling a kernel of that level sound. Public in a private module, because signatures of sealed traits
/// contain it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Kind);

/// The instruction sets that kernels are compiled for, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The baseline of the architecture.
    Scalar,
    /// AVX2, FMA, F16C, BMI 1 and 2, LZCNT, POPCNT.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// All of [`Kind::Avx2`], and AVX-512 F, BW, CD, DQ, VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON, which every 64-bit Arm has.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Level {
    /// The best level of this CPU.
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next_back().unwrap_or(Self(Kind::Scalar)))
    }

    /// All levels of this CPU, in ascending order.
    pub(crate) fn available() -> impl DoubleEndedIterator<Item = Self> {
        let kinds = [
            Some(Kind::Scalar),
            #[cfg(target_arch = "x86_64")]
            has_avx2().then_some(Kind::Avx2),
            #[cfg(target_arch = "x86_64")]
            has_avx512().then_some(Kind::Avx512),
            #[cfg(target_arch = "aarch64")]
            Some(Kind::Neon),
        ];
        kinds.into_iter().flatten().map(Self)
    }

    /// The instruction set.
    pub(crate) fn kind(self) -> Kind {
        self.0
    }

    /// The instruction set's name, as `brevity info` prints it.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Defines a kernel: a function with one safe body that is compiled once for each level. Its first argument
/// is the [`Level`] to run at. It may have type parameters with one bound each.
macro_rules! per_level {
    (
        $(#[$attribute:meta])*
        $vis:vis fn $name:ident $(<$($parameter:ident: $bound:path),+>)? (
            $($argument:ident: $type:ty),* $(,)?
        ) $(-> $result:ty)? $body:block
    ) => {
        $(#[$attribute])*
        $vis fn $name $(<$($parameter: $bound),+>)? (
            level: $crate::simd::Level,
            $($argument: $type),*
        ) $(-> $result)? {
            #[inline(always)]
            fn body $(<$($parameter: $bound),+>)? ($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2 $(<$($parameter: $bound),+>)? ($($argument: $type),*) $(-> $result)? {
                body($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
            fn avx512 $(<$($parameter: $bound),+>)? ($($argument: $type),*) $(-> $result)? {
                body($($argument),*)
            }

            match level.kind() {
                // SAFETY: a level of this kind exists only where the CPU was found to have these features.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Kind::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Kind::Avx2 => unsafe { avx2($($argument),*) },
                // The baseline includes NEON on Arm, so the body is compiled for it as it is.
                _ => body($($argument),*),
            }
        }
    };
}
pub(crate) use per_level;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_level_is_the_last_of_all() {
        let all: Vec<_> = Level::available().collect();
        assert_eq!(all.first().map(|level| level.name()), Some("scalar"));
        assert_eq!(all.last(), Some(&Level::best()));
        assert!(all.is_sorted_by(|poorer, richer| poorer < richer));
    }
}
