// SPDX-License-Identifier: Apache-2.0
//
// An ordinary C++ client, which knows nothing of Lien: `cpp_client ADDRESS STEP...`, one line for each step: METHOD:SIZE:COUNT, where METHOD is unary, aunary (async), cunary (callback), collect, spread, chat, cchat
// (callback), dead (a unary call past its deadline); or `wait` for a line on standard input.

#include <grpcpp/grpcpp.h>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "route.grpc.pb.h"

using lientest::Piece;
using lientest::Route;

static Piece make(size_t size, uint32_t number)
{
    Piece piece;
    std::string *data = piece.mutable_data();
    data->resize(size);
    for (size_t i = 0; i < size; i++)
        (*data)[i] = static_cast<char>(i * 2654435761u >> 13 ^ number);
    piece.set_number(number);
    return piece;
}

static bool same(const Piece &a, const Piece &b)
{
    return a.number() == b.number() && a.data() == b.data();
}

struct Result {
    grpc::Status status;
    int good = 0;
};

static Result unary(Route::Stub *stub, size_t size, uint32_t count, const std::string &how)
{
    Result result;
    for (uint32_t i = 0; i < count && result.status.ok(); i++) {
        grpc::ClientContext context;
        context.set_wait_for_ready(true);
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(how == "dead" ? -1 : 60));
        Piece in = make(size, i), out;
        if (how == "aunary") {
            grpc::CompletionQueue queue;
            auto reader = stub->AsyncUnary(&context, in, &queue);
            reader->Finish(&out, &result.status, &queue);
            void *tag;
            bool ok;
            queue.Next(&tag, &ok);
            queue.Shutdown();
            while (queue.Next(&tag, &ok))
                ;
        } else if (how == "cunary") {
            std::mutex mutex;
            std::condition_variable changed;
            bool done = false;
            stub->async()->Unary(&context, &in, &out, [&](grpc::Status status) {
                std::lock_guard<std::mutex> lock(mutex);
                result.status = status;
                done = true;
                changed.notify_one();
            });
            std::unique_lock<std::mutex> lock(mutex);
            changed.wait(lock, [&] { return done; });
        } else {
            result.status = stub->Unary(&context, in, &out);
        }
        result.good += result.status.ok() && same(in, out);
    }
    return result;
}

static Result collect(Route::Stub *stub, size_t size, uint32_t count)
{
    Result result;
    grpc::ClientContext context;
    Piece out;
    std::string all;
    auto writer = stub->Collect(&context, &out);
    for (uint32_t i = 0; i < count; i++) {
        Piece piece = make(size, i);
        all += piece.data();
        writer->Write(piece);
    }
    writer->WritesDone();
    result.status = writer->Finish();
    result.good = out.number() == count && out.data() == all;
    return result;
}

static Result spread(Route::Stub *stub, size_t size, uint32_t count)
{
    Result result;
    grpc::ClientContext context;
    Piece in = make(size, count), out;
    auto reader = stub->Spread(&context, in);
    while (reader->Read(&out))
        result.good += same(in, out);
    result.status = reader->Finish();
    return result;
}

static Result chat(Route::Stub *stub, size_t size, uint32_t count)
{
    Result result;
    grpc::ClientContext context;
    auto both = stub->Chat(&context);
    for (uint32_t i = 0; i < count; i++) {
        Piece in = make(size, i), out;
        if (both->Write(in) && both->Read(&out))
            result.good += same(in, out);
    }
    both->WritesDone();
    result.status = both->Finish();
    return result;
}

class Chatter final : public grpc::ClientBidiReactor<Piece, Piece> {
  public:
    Chatter(Route::Stub *stub, size_t s, uint32_t c) : size(s), count(c)
    {
        stub->async()->Chat(&context, this);
        next();
        StartCall();
    }
    void OnWriteDone(bool ok) override
    {
        if (ok)
            StartRead(&out);
    }
    void OnReadDone(bool ok) override
    {
        result.good += ok && same(in, out);
        if (ok && ++number < count)
            next();
        else
            StartWritesDone();
    }
    void OnDone(const grpc::Status &status) override
    {
        std::lock_guard<std::mutex> lock(mutex);
        result.status = status;
        done = true;
        changed.notify_one();
    }
    Result wait()
    {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return done; });
        return result;
    }

  private:
    void next()
    {
        in = make(size, number);
        StartWrite(&in);
    }
    grpc::ClientContext context;
    size_t size;
    uint32_t count, number = 0;
    Piece in, out;
    Result result;
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
};

static void step(Route::Stub *stub, const char *text)
{
    char method[16] = "";
    size_t size = 0;
    unsigned count = 0;
    if (std::strcmp(text, "wait") == 0) {
        int byte;
        do
            byte = std::getchar();
        while (byte != '\n' && byte != EOF);
        return;
    }
    if (std::sscanf(text, "%15[^:]:%zu:%u", method, &size, &count) != 3)
        std::exit(2);
    std::string how = method;
    Result result;
    if (how == "collect")
        result = collect(stub, size, count);
    else if (how == "spread")
        result = spread(stub, size, count);
    else if (how == "chat")
        result = chat(stub, size, count);
    else if (how == "cchat")
        result = Chatter(stub, size, count).wait();
    else
        result = unary(stub, size, count, how);
    std::printf("%s status=%d good=%d\n", text, result.status.error_code(), result.good);
    std::fflush(stdout);
    if (!result.status.ok())
        std::fprintf(stderr, "details: %s\n", result.status.error_message().c_str());
}

int main(int argc, char **argv)
{
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(-1);
    auto channel = grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), args);
    auto stub = Route::NewStub(channel);
    for (int i = 2; i < argc; i++)
        step(stub.get(), argv[i]);
    return 0;
}
