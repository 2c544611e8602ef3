#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brevity_collectives::fuzzing::ok_topk_lies(data));
