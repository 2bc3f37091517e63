#include "goldens.hpp"
#include "wire/msgpack_writer.hpp"
#include "wire/sglang/handshake.hpp"
#include "wire/sglang/layouts.hpp"

#include <functional>
#include <gtest/gtest.h>

namespace rankwise::wire::sglang {
namespace {

using goldens::bytes;

registration sample_registration(std::string version, layouts layouts) {
  registration r;
  r.max_model_len = 131'072;
  r.num_gpu_blocks = 1 << 20;
  r.block_size = 1;
  r.engine_version = std::move(version);
  r.data_parallel_size = 8;
  r.data_parallel_rank = 3;
  r.max_num_seqs = 256;
  r.max_num_batched_tokens = 8192;
  r.kv_cache_size_tokens = 1 << 20;
  r.instance_id = "tiny";
  r.positional_layouts = std::move(layouts);
  return r;
}

std::string map_frame(const std::function<void(msgpack_writer&)>& write) {
  std::string frame;
  msgpack_writer writer(frame);
  write(writer);
  return frame;
}

TEST(handshake_test, hello_and_ready_are_byte_for_byte_the_plugins) {
  EXPECT_EQ(encode_handshake({handshake_status::hello, true, true}), bytes(goldens::hello));
  EXPECT_EQ(encode_handshake({handshake_status::ready, true, true}), bytes(goldens::ready));
  EXPECT_EQ(decode_handshake(bytes(goldens::hello))->status, handshake_status::hello);
  EXPECT_EQ(decode_handshake(bytes(goldens::ready))->status, handshake_status::ready);
}

TEST(handshake_test, any_other_status_is_named) {
  const auto frame = map_frame([](auto& w) {
    w.map(1);
    w.text("status");
    w.text("BYE");
  });
  const auto decoded = decode_handshake(frame);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().kind, wire_error_kind::bad_status);
  EXPECT_EQ(decoded.error().field, "BYE");
}

TEST(handshake_test, init_is_byte_for_byte_the_plugins) {
  EXPECT_EQ(encode_init({"ipc:///tmp/a", "ipc:///tmp/b"}), bytes(goldens::init));
  const auto decoded = decode_init(bytes(goldens::init));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->input_endpoint, "ipc:///tmp/a");
  EXPECT_EQ(decoded->output_endpoint, "ipc:///tmp/b");
}

TEST(handshake_test, init_without_an_endpoint_is_refused) {
  const auto frame = map_frame([](auto& w) {
    w.map(1);
    w.text("addresses");
    w.map(1);
    w.text("inputs");
    w.array(0);
  });
  const auto decoded = decode_init(frame);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().kind, wire_error_kind::missing_field);
  EXPECT_EQ(decoded.error().field, "inputs");
}

TEST(handshake_test, identity_is_two_bytes_little_endian) {
  EXPECT_EQ(encode_identity(3), bytes(goldens::identity3));
  EXPECT_EQ(encode_identity(258), bytes(goldens::identity258));
  EXPECT_EQ(decode_identity(encode_identity(65'535)), 65'535);
  EXPECT_EQ(decode_identity("a").error().kind, wire_error_kind::truncated);
  EXPECT_EQ(decode_identity("abc").error().kind, wire_error_kind::trailing_bytes);
}

TEST(handshake_test, registrations_of_both_releases_are_byte_for_byte_the_plugins) {
  EXPECT_EQ(encode_registration(sample_registration("sglang-0.5.23", sglang_0_5_23_layouts())),
            bytes(goldens::registration_0_5_23));
  EXPECT_EQ(encode_registration(sample_registration("sglang-0.5.21", sglang_0_5_21_layouts())),
            bytes(goldens::registration_0_5_21));
}

TEST(handshake_test, a_registration_is_read_by_its_keys) {
  const auto r = decode_registration(bytes(goldens::registration_0_5_23));
  ASSERT_TRUE(r);
  EXPECT_EQ(r->engine_version, "sglang-0.5.23");
  EXPECT_EQ(r->kv_cache_size_tokens, 1U << 20);
  EXPECT_EQ(r->max_num_batched_tokens, 8192U);
  EXPECT_EQ(r->max_num_seqs, 256U);
  EXPECT_EQ(r->data_parallel_rank, 3U);
  EXPECT_EQ(r->positional_layouts, sglang_0_5_23_layouts());
  EXPECT_EQ(r->positional_layouts.at("SamplingParams").at(26), "watermark");
}

TEST(handshake_test, a_registration_without_what_placement_needs_is_refused_by_name) {
  const std::string whole = bytes(goldens::registration_0_5_21);
  for (const std::string key : {"max_model_len", "kv_cache_size_tokens", "max_num_seqs", "positional_layouts"}) {
    std::string frame = whole;
    frame.replace(frame.find(key), key.size(), std::string(key.size(), 'x'));
    const auto r = decode_registration(frame);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().kind, wire_error_kind::missing_field);
    EXPECT_EQ(r.error().field, key);
  }
}

TEST(handshake_test, a_key_of_another_type_is_named) {
  const auto frame = map_frame([](auto& w) {
    w.map(2);
    w.text("max_model_len");
    w.unsigned_number(1);
    w.text("max_num_seqs");
    w.text("many");
  });
  const auto r = decode_registration(frame);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().kind, wire_error_kind::wrong_type);
  EXPECT_EQ(r.error().field, "max_num_seqs");
  EXPECT_EQ(to_string(r.error()), "wrong_type max_num_seqs: \"many\"");
}

TEST(handshake_test, a_number_beyond_its_field_is_too_large) {
  const auto frame = map_frame([](auto& w) {
    w.map(2);
    w.text("max_model_len");
    w.unsigned_number(1);
    w.text("max_num_seqs");
    w.unsigned_number(std::uint64_t{1} << 40);
  });
  EXPECT_EQ(to_string(decode_registration(frame).error()), "too_large max_num_seqs: 1099511627776");
}

TEST(handshake_test, a_frame_cut_anywhere_is_an_error_and_nothing_else) {
  for (const std::string_view golden :
       {goldens::hello, goldens::init, goldens::registration_0_5_23, goldens::registration_0_5_21}) {
    const std::string whole = bytes(golden);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const std::string cut = whole.substr(0, size);
      EXPECT_FALSE(decode_handshake(cut));
      EXPECT_FALSE(decode_init(cut));
      EXPECT_FALSE(decode_registration(cut));
    }
    EXPECT_EQ(decode_registration(whole + "x").error().kind, wire_error_kind::trailing_bytes);
  }
}

TEST(handshake_test, announced_lengths_beyond_the_limits_allocate_nothing) {
  const std::string huge_array("\xdd\xff\xff\xff\xff", 5);
  const std::string huge_map("\xdf\xff\xff\xff\xff", 5);
  const std::string huge_text("\xdb\xff\xff\xff\xff", 5);
  for (const std::string& frame : {huge_array, huge_map}) {
    EXPECT_EQ(decode_registration(frame).error().kind, wire_error_kind::too_large);
  }
  EXPECT_EQ(decode_registration(huge_text).error().kind, wire_error_kind::truncated);
  EXPECT_EQ(decode_registration(std::string(64, '\x91')).error().kind, wire_error_kind::too_large); // nesting
  EXPECT_EQ(decode_registration(std::string(2 << 20, '\x00')).error().kind, wire_error_kind::too_large);
  EXPECT_EQ(decode_registration("\xc1").error().kind, wire_error_kind::not_msgpack);
}

} // namespace
} // namespace rankwise::wire::sglang
