//! Bytes in words that are stored and loaded each on its own.

use std::sync::atomic::{AtomicU64, Ordering};

/// Stores as many words as `bytes` need.
#[inline]
pub(crate) fn store_words(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        words[whole.len()].store(word_of(rest), Ordering::Relaxed);
    }
}

/// Fills `bytes` from as many words as they need.
#[inline]
pub(crate) fn load_words(words: &[u64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    for (word, bytes) in words.iter().zip(&mut *whole) {
        *bytes = word.to_ne_bytes();
    }
    if !rest.is_empty() {
        rest.copy_from_slice(&words[whole.len()].to_ne_bytes()[..rest.len()]);
    }
}

/// Up to eight bytes as a word, in the machine's order.
#[inline]
pub(super) fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}
