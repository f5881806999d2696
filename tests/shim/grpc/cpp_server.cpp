// SPDX-License-Identifier: Apache-2.0
//
// An ordinary C++ server, which knows nothing of Lien: `cpp_server ADDRESS sync|async|callback`. Prints "port N"; ends when its standard input does. The async one serves Unary and Chat, each on one
// thread.

#include <grpcpp/grpcpp.h>
#include <cstdio>
#include <string>
#include <thread>

#include "route.grpc.pb.h"

using lientest::Piece;
using lientest::Route;

static void say_port(int port)
{
    std::printf("port %d\n", port);
    std::fflush(stdout);
    if (port == 0)
        std::exit(1);
}

class Sync final : public Route::Service {
    grpc::Status Unary(grpc::ServerContext *, const Piece *in, Piece *out) override
    {
        *out = *in;
        return grpc::Status::OK;
    }
    grpc::Status Collect(grpc::ServerContext *, grpc::ServerReader<Piece> *in, Piece *out) override
    {
        Piece piece;
        while (in->Read(&piece)) {
            out->mutable_data()->append(piece.data());
            out->set_number(out->number() + 1);
        }
        return grpc::Status::OK;
    }
    grpc::Status Spread(grpc::ServerContext *, const Piece *in, grpc::ServerWriter<Piece> *out) override
    {
        for (uint32_t i = 0; i < in->number() && out->Write(*in); i++)
            ;
        return grpc::Status::OK;
    }
    grpc::Status Chat(grpc::ServerContext *, grpc::ServerReaderWriter<Piece, Piece> *both) override
    {
        Piece piece;
        while (both->Read(&piece) && both->Write(piece))
            ;
        return grpc::Status::OK;
    }
};

class Callback final : public Route::CallbackService {
    grpc::ServerUnaryReactor *Unary(grpc::CallbackServerContext *context, const Piece *in, Piece *out) override
    {
        *out = *in;
        auto *reactor = context->DefaultReactor();
        reactor->Finish(grpc::Status::OK);
        return reactor;
    }
    grpc::ServerBidiReactor<Piece, Piece> *Chat(grpc::CallbackServerContext *) override
    {
        class Chatter final : public grpc::ServerBidiReactor<Piece, Piece> {
          public:
            Chatter() { StartRead(&piece); }
            void OnReadDone(bool ok) override
            {
                if (ok)
                    StartWrite(&piece);
                else
                    Finish(grpc::Status::OK);
            }
            void OnWriteDone(bool ok) override
            {
                if (ok)
                    StartRead(&piece);
                else
                    Finish(grpc::Status::CANCELLED);
            }
            void OnDone() override { delete this; }

          private:
            Piece piece;
        };
        return new Chatter;
    }
};

// One call of an async server, as a state machine.
class AsyncCall {
  public:
    virtual ~AsyncCall() = default;
    virtual void step(bool ok) = 0;
};

class AsyncUnary final : public AsyncCall {
  public:
    AsyncUnary(Route::AsyncService *s, grpc::ServerCompletionQueue *q) : service(s), queue(q), answer(&context)
    {
        service->RequestUnary(&context, &in, &answer, queue, queue, this);
    }
    void step(bool ok) override
    {
        if (!ok || done) {
            delete this;
            return;
        }
        new AsyncUnary(service, queue);
        done = true;
        answer.Finish(in, grpc::Status::OK, this);
    }

  private:
    Route::AsyncService *service;
    grpc::ServerCompletionQueue *queue;
    grpc::ServerContext context;
    Piece in;
    grpc::ServerAsyncResponseWriter<Piece> answer;
    bool done = false;
};

class AsyncChat final : public AsyncCall {
  public:
    AsyncChat(Route::AsyncService *s, grpc::ServerCompletionQueue *q) : service(s), queue(q), both(&context)
    {
        service->RequestChat(&context, &both, queue, queue, this);
    }
    void step(bool ok) override
    {
        switch (state) {
        case kNew:
            if (!ok) {
                delete this;
                return;
            }
            new AsyncChat(service, queue);
            state = kRead;
            both.Read(&piece, this);
            break;
        case kRead:
            state = ok ? kWrite : kEnd;
            if (ok)
                both.Write(piece, this);
            else
                both.Finish(grpc::Status::OK, this);
            break;
        case kWrite:
            state = ok ? kRead : kEnd;
            if (ok)
                both.Read(&piece, this);
            else
                both.Finish(grpc::Status::CANCELLED, this);
            break;
        case kEnd:
            delete this;
            break;
        }
    }

  private:
    enum { kNew, kRead, kWrite, kEnd } state = kNew;
    Route::AsyncService *service;
    grpc::ServerCompletionQueue *queue;
    grpc::ServerContext context;
    Piece piece;
    grpc::ServerAsyncReaderWriter<Piece, Piece> both;
};

static void wait_for_end()
{
    while (std::getchar() != EOF)
        ;
}

static void run_plain(const char *address, grpc::Service *service)
{
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service);
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    say_port(port);
    wait_for_end();
    server->Shutdown();
}

static void run_async(const char *address)
{
    int port = 0;
    Route::AsyncService service;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    say_port(port);
    std::thread thread([&] {
        void *tag;
        bool ok;
        new AsyncUnary(&service, queue.get());
        new AsyncChat(&service, queue.get());
        while (queue->Next(&tag, &ok))
            static_cast<AsyncCall *>(tag)->step(ok);
    });
    wait_for_end();
    server->Shutdown();
    queue->Shutdown();
    thread.join();
}

int main(int argc, char **argv)
{
    const char *address = argc > 1 ? argv[1] : "127.0.0.1:0";
    std::string mode = argc > 2 ? argv[2] : "sync";
    Sync sync;
    Callback callback;
    if (mode == "async")
        run_async(address);
    else
        run_plain(address, mode == "sync" ? static_cast<grpc::Service *>(&sync) : &callback);
    return 0;
}
