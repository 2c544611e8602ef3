#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| brevity_compress::fuzzing::codec_messages(data));
