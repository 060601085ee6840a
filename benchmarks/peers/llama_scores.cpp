// How llama.cpp reads a text: for every next token of every window, its likeliest id and the log-likelihood of the one that
// stands there. Usage: llama_scores MODEL.gguf IDS WINDOW THREADS OUT
//
// IDS holds int32 token ids, a multiple of WINDOW. OUT gets, for each of the WINDOW - 1 predictions of each window, an int32
// and a double. llama-perplexity looks at the second half of a window only, which another program's figures cannot be
// compared with.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "llama.h"

static void fail(const char* reason) {
    std::fprintf(stderr, "llama_scores: %s\n", reason);
    std::exit(1);
}

int main(int count, char** arguments) {
    if (count != 6) fail("usage: llama_scores MODEL.gguf IDS WINDOW THREADS OUT");
    const int window = std::atoi(arguments[3]), threads = std::atoi(arguments[4]);
    std::ifstream in(arguments[2], std::ios::binary | std::ios::ate);
    if (!in || window < 2) fail("no ids");
    std::vector<llama_token> ids(size_t(in.tellg()) / sizeof(llama_token));
    in.seekg(0);
    in.read(reinterpret_cast<char*>(ids.data()), std::streamsize(ids.size() * sizeof(llama_token)));

    llama_backend_init();
    llama_model* model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    if (!model) fail("no model");
    llama_context_params settings = llama_context_default_params();
    settings.n_ctx = settings.n_batch = uint32_t(window);
    settings.n_ubatch = 256;
    settings.n_threads = settings.n_threads_batch = threads;
    llama_context* context = llama_init_from_model(model, settings);
    if (!context) fail("no context");
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));

    std::ofstream out(arguments[5], std::ios::binary);
    llama_batch batch = llama_batch_init(window, 0, 1);
    for (size_t start = 0; start + size_t(window) <= ids.size(); start += size_t(window)) {
        llama_memory_clear(llama_get_memory(context), true);
        batch.n_tokens = window;
        for (int each = 0; each < window; ++each) {
            batch.token[each] = ids[start + size_t(each)];
            batch.pos[each] = each;
            batch.n_seq_id[each] = 1;
            batch.seq_id[each][0] = 0;
            batch.logits[each] = 1;
        }
        if (llama_decode(context, batch) != 0) fail("a window cannot be read");
        for (int each = 0; each + 1 < window; ++each) {
            const float* logits = llama_get_logits_ith(context, each);
            int32_t likeliest = 0;
            for (int id = 1; id < vocabulary; ++id)
                if (logits[id] > logits[likeliest]) likeliest = id;
            double sum = 0;
            for (int id = 0; id < vocabulary; ++id) sum += std::exp(double(logits[id]) - double(logits[likeliest]));
            const double likelihood =
                double(logits[ids[start + size_t(each) + 1]]) - double(logits[likeliest]) - std::log(sum);
            out.write(reinterpret_cast<const char*>(&likeliest), sizeof likeliest);
            out.write(reinterpret_cast<const char*>(&likelihood), sizeof likelihood);
        }
    }
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return out.good() ? 0 : 1;
}
