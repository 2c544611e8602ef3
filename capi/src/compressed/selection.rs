//! Selection of entries of a dense vector by any rule.

use brevity::compress::generator::Generator;
use brevity::compress::select::{
    BySignScratch, SampledScratch, TopKScratch, bin_maxima, fixed_threshold, largest_blocks, over_threshold,
    random_block, random_k, resampled_top_k, sampled_top_k, top_k, top_k_by_sign,
};
use brevity::compress::{Error, SparseVec, in_standard_float_mode};

use super::brv_sparse;
use super::residual::{brv_residual, refused, residual_of};
use super::sparse::sparse_of;
use crate::boundary::{check, guard};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::status::brv_status;

/// A rule's number. C may pass any number, so this is not a Rust enum.
pub type brv_selection_rule = u32;

/// A rule and its settings, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_selector {
    size: u32,
    rule: brv_selection_rule,
    k: usize,
    limit: usize,
    threshold: f64,
    seed: u64,
    step: u64,
    gradient: *const f32,
    reserved: [u64; 4],
}

/// Reads a selector.
///
/// # Safety
/// `selector` is NULL, or points to at least 4 bytes that hold its size. If that is the size of
/// [`brv_selector`], the whole struct may be read.
unsafe fn read(selector: *const brv_selector) -> Result<brv_selector, Failure> {
    check(selector, "selector")?;
    // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
    let size = unsafe { (&raw const (*selector).size).read() };
    let expected = size_of::<brv_selector>();
    if size as usize != expected {
        return Err(Failure::argument(format!(
            "selector.size is {size}, expected {expected}: begin with BRV_SELECTOR_INIT"
        )));
    }
    // SAFETY: it has the size of a selector, so the caller of this function guarantees all of it.
    let selector = unsafe { selector.read() };
    if selector.reserved != [0; 4] {
        return Err(Failure::argument(
            "a reserved field of selector is set, expected 0: begin with BRV_SELECTOR_INIT",
        ));
    }
    Ok(selector)
}

impl brv_selector {
    /// The entries of `values` that it selects.
    ///
    /// # Safety
    /// `gradient` has as many elements as `values` if the rule reads it, set, that nobody writes meanwhile.
    unsafe fn select(self, values: &[f32]) -> Result<SparseVec, Failure> {
        let Self { k, limit, seed, step, .. } = self;
        let (mut out, threshold) = (SparseVec::new(0), self.threshold as f32);
        // Vectors are for one call: what a program selects by these rules is no hot path.
        let (exact, sampled) = (&mut TopKScratch::new(), &mut SampledScratch::new());
        let generator = &mut Generator::for_stream(seed, step);
        match self.rule {
            1 => top_k(values, k, &mut out, exact),
            2 => over(values, threshold, limit, &mut out, exact),
            3 => sampled_top_k(values, k, limit, generator, &mut out, sampled),
            4 => resampled_top_k(values, k, generator, &mut out, sampled),
            5 => fixed_threshold(values, threshold, &mut out),
            6 => top_k_by_sign(values, k, limit, &mut out, &mut BySignScratch::new()),
            7 => random_k(values, k, generator, &mut out, &mut Vec::new()),
            8 => random_block(values, k, generator, &mut out),
            9 => {
                if k == 0 {
                    return Err(Failure::argument("selector.k is 0, expected 1 or more: places of a bin"));
                }
                let gradient = Stretch::new(self.gradient, values.len(), "selector.gradient")?;
                // SAFETY: the caller of this function guarantees set memory that nobody writes.
                bin_maxima(values, unsafe { gradient.read() }, k, &mut out)
            }
            10 => largest_blocks(values, k, &mut out, &mut Vec::new()),
            rule => {
                return Err(Failure::argument(format!(
                    "selector.rule is {rule}, expected a brv_selection_rule (1 to 10)"
                )));
            }
        }
        .map_err(refused)?;
        Ok(out)
    }
}

/// What reaches a threshold, or the `limit` largest entries if these are fewer.
pub(super) fn over(
    values: &[f32],
    threshold: f32,
    limit: usize,
    out: &mut SparseVec,
    scratch: &mut TopKScratch,
) -> Result<(), Error> {
    if over_threshold(values, threshold, limit, out)? { Ok(()) } else { top_k(values, limit, out, scratch) }
}

/// Selects entries of a dense vector.
///
/// # Safety
/// `values` has `n` elements, set, that nobody writes meanwhile, and so has `gradient` of the selector if its
/// rule reads it. `selector` is NULL, or points to at least 4 bytes that hold its size: if that is the size
/// of [`brv_selector`], the whole struct may be read. `selected` is NULL or a live vector.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_select(
    selected: *mut brv_sparse,
    values: *const f32,
    n: usize,
    selector: *const brv_selector,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live vector.
        let mut selected = unsafe { sparse_of(selected, "selected") }?;
        // SAFETY: the caller in C guarantees a selector.
        let selector = unsafe { read(selector) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let values = unsafe { Stretch::new(values, n, "values")?.read() };
        // SAFETY: likewise of the gradient.
        selected.value = in_standard_float_mode(|| unsafe { selector.select(values) })?;
        Ok(())
    })
}

/// Takes entries out of a residual: subtracts what is sent of them.
///
/// # Safety
/// `residual` and `entries` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_take(
    residual: *mut brv_residual,
    entries: *const brv_sparse,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { residual_of(residual) }?;
        // SAFETY: the caller in C guarantees a live vector.
        let entries = unsafe { sparse_of(entries, "entries") }?;
        kept.value.check_length(entries.value.dim(), "the dim of entries")?;
        let mut taken = entries.value.clone();
        taken.values_mut().iter_mut().for_each(|value| *value = -*value);
        in_standard_float_mode(|| kept.value.residual.put_back(taken.view())).map_err(refused)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 3000;

    fn values(seed: u64) -> Vec<f32> {
        let mut generator = Generator::new(seed);
        (0..N).map(|_| generator.normal()).collect()
    }

    fn selector(rule: brv_selection_rule, k: usize, limit: usize) -> brv_selector {
        let (size, gradient) = (size_of::<brv_selector>() as u32, std::ptr::null());
        brv_selector { size, rule, k, limit, threshold: 1.5, seed: 9, step: 4, gradient, reserved: [0; 4] }
    }

    fn selected(selector: brv_selector) -> Result<SparseVec, String> {
        // SAFETY: the gradient of a selector of these tests is NULL, or has as many values.
        unsafe { selector.select(&values(1)) }.map_err(|failure| failure.text().to_owned())
    }

    type Rule = fn(&[f32], &mut Generator, &mut SparseVec) -> Result<(), Error>;

    #[test]
    fn each_rule_is_that_of_rust() {
        let rules: [(brv_selector, Rule); 9] = [
            (selector(1, 40, 0), |v, _, out| top_k(v, 40, out, &mut TopKScratch::new())),
            (selector(2, 0, N), |v, _, out| over_threshold(v, 1.5, N, out).map(drop)),
            (selector(3, 40, 90), |v, g, out| sampled_top_k(v, 40, 90, g, out, &mut SampledScratch::new())),
            (selector(4, 40, 0), |v, g, out| resampled_top_k(v, 40, g, out, &mut SampledScratch::new())),
            (selector(5, 0, 0), |v, _, out| fixed_threshold(v, 1.5, out)),
            (selector(6, 30, 20), |v, _, out| top_k_by_sign(v, 30, 20, out, &mut BySignScratch::new())),
            (selector(7, 40, 0), |v, g, out| random_k(v, 40, g, out, &mut Vec::new())),
            (selector(8, 40, 0), |v, g, out| random_block(v, 40, g, out)),
            (selector(10, 2, 0), |v, _, out| largest_blocks(v, 2, out, &mut Vec::new())),
        ];
        for (selector, rule) in rules {
            let mut expected = SparseVec::new(0);
            rule(&values(1), &mut Generator::for_stream(9, 4), &mut expected).unwrap();
            assert!(!expected.is_empty() && expected.len() < N);
            assert_eq!(selected(selector).unwrap(), expected, "{}", selector.rule);
        }
        let (gradient, mut expected) = (values(2), SparseVec::new(0));
        bin_maxima(&values(1), &gradient, 50, &mut expected).unwrap();
        let of_bins = brv_selector { gradient: gradient.as_ptr(), ..selector(9, 50, 0) };
        assert_eq!(selected(of_bins).unwrap(), expected);
        // More reach the threshold than the limit.
        let mut expected = SparseVec::new(0);
        top_k(&values(1), 7, &mut expected, &mut TopKScratch::new()).unwrap();
        assert_eq!(selected(selector(2, 0, 7)).unwrap(), expected);
    }

    #[test]
    fn wrong_selectors_are_refused() {
        for (wrong, text) in [
            (selector(0, 1, 0), "selector.rule is 0"),
            (selector(11, 1, 0), "selector.rule is 11"),
            (selector(9, 0, 0), "selector.k is 0"),
            (selector(9, 5, 0), "selector.gradient is NULL"),
            (brv_selector { threshold: 1e-300, ..selector(5, 0, 0) }, "threshold 0"),
            (brv_selector { threshold: f64::NAN, ..selector(2, 0, 0) }, "threshold NaN"),
        ] {
            let refused = selected(wrong).unwrap_err();
            assert!(refused.contains(text), "{refused}");
        }
        let with = |change: fn(&mut brv_selector)| {
            let mut selector = selector(1, 1, 1);
            change(&mut selector);
            // SAFETY: a local variable.
            unsafe { read(&raw const selector) }.err().unwrap().text().to_owned()
        };
        assert!(with(|selector| selector.size -= 8).contains("BRV_SELECTOR_INIT"));
        assert!(with(|selector| selector.reserved[3] = 1).contains("reserved"));
    }
}
