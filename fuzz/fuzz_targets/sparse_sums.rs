#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brevity_collectives::fuzzing::sparse_sums(data));
