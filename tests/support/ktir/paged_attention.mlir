// SPDX-License-Identifier: Apache-2.0
// Attention of 8 query tokens with 32 heads of 128 over a paged cache: 128 positions in 8 pages of 16, 8 key/value heads,
// each shared by 4 query heads. On the 4 x 8 grid a compute tile owns 2 tokens and one key/value head, gathers a page at
// a time through the block table, and keeps a running maximum, sum and weighted value in f32.

#query = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 31 >= 0, d2 >= 0, -d2 + 127 >= 0)>
#cache = affine_set<(d0, d1, d2, d3) :
  (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 15 >= 0, d2 >= 0, -d2 + 7 >= 0, d3 >= 0, -d3 + 127 >= 0)>
#table = affine_set<(d0) : (d0 >= 0, -d0 + 7 >= 0)>
#query_tile = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 1 >= 0, d1 >= 0, -d1 + 3 >= 0, d2 >= 0, -d2 + 127 >= 0)>
#page = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 127 >= 0)>
#order2 = affine_map<(d0, d1) -> (d0, d1)>
#order3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>

module {
  func.func @paged_attention(%query: index, %key_cache: index, %value_cache: index, %block_table: index, %output: index,
                             %scale: f32) attributes {grid = [4, 8]} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %pages = arith.constant 8 : index
    %token_block, %kv_head = ktdp.get_compute_tile_id : index, index
    %token = arith.muli %token_block, %c2 : index
    %head = arith.muli %kv_head, %c4 : index
    %Q = ktdp.construct_memory_view %query, sizes: [8, 32, 128], strides: [4096, 128, 1]
      {coordinate_set = #query, memory_space = #ktdp.memory_space<global>} : memref<8x32x128xf16>
    %K = ktdp.construct_memory_view %key_cache, sizes: [64, 16, 8, 128], strides: [16384, 1024, 128, 1]
      {coordinate_set = #cache, memory_space = #ktdp.memory_space<global>} : memref<64x16x8x128xf16>
    %V = ktdp.construct_memory_view %value_cache, sizes: [64, 16, 8, 128], strides: [16384, 1024, 128, 1]
      {coordinate_set = #cache, memory_space = #ktdp.memory_space<global>} : memref<64x16x8x128xf16>
    %T = ktdp.construct_memory_view %block_table, sizes: [8], strides: [1]
      {coordinate_set = #table, memory_space = #ktdp.memory_space<global>} : memref<8xi32>
    %O = ktdp.construct_memory_view %output, sizes: [8, 32, 128], strides: [4096, 128, 1]
      {coordinate_set = #query, memory_space = #ktdp.memory_space<global>} : memref<8x32x128xf16>
    %qt = ktdp.construct_access_tile %Q[%token, %head, %c0] {access_tile_set = #query_tile, access_tile_order = #order3}
      : memref<8x32x128xf16> -> !ktdp.access_tile<2x4x128xindex>
    %q3 = ktdp.load %qt : !ktdp.access_tile<2x4x128xindex> -> tensor<2x4x128xf16>
    %q = tensor.collapse_shape %q3 [[0, 1], [2]] : tensor<2x4x128xf16> into tensor<8x128xf16>
    %lowest = arith.constant dense<0xFF800000> : tensor<8xf32>
    %zero = arith.constant dense<0.0> : tensor<8xf32>
    %nothing = arith.constant dense<0.0> : tensor<8x128xf32>
    %scales = tensor.splat %scale : tensor<8x16xf32>
    %m, %l, %acc = scf.for %j = %c0 to %pages step %c1
        iter_args(%peak = %lowest, %sum = %zero, %weighted = %nothing)
        -> (tensor<8xf32>, tensor<8xf32>, tensor<8x128xf32>) {
      %kt = ktdp.construct_indirect_access_tile intermediate_variables(%t, %d) %K[ind(%T[%j]), (%t), (%kv_head), (%d)]
        {variables_space_set = #page, variables_space_order = #order2}
        : memref<64x16x8x128xf16>, memref<8xi32> -> !ktdp.access_tile<16x128xindex>
      %k = ktdp.load %kt : !ktdp.access_tile<16x128xindex> -> tensor<16x128xf16>
      %vt = ktdp.construct_indirect_access_tile intermediate_variables(%t, %d) %V[ind(%T[%j]), (%t), (%kv_head), (%d)]
        {variables_space_set = #page, variables_space_order = #order2}
        : memref<64x16x8x128xf16>, memref<8xi32> -> !ktdp.access_tile<16x128xindex>
      %v = ktdp.load %vt : !ktdp.access_tile<16x128xindex> -> tensor<16x128xf16>
      %flipped = tensor.empty() : tensor<128x16xf16>
      %kT = linalg.transpose ins(%k : tensor<16x128xf16>) outs(%flipped : tensor<128x16xf16>) permutation = [1, 0]
      %blank = arith.constant dense<0.0> : tensor<8x16xf32>
      %dots = linalg.matmul ins(%q, %kT : tensor<8x128xf16>, tensor<128x16xf16>)
        outs(%blank : tensor<8x16xf32>) -> tensor<8x16xf32>
      %scores = arith.mulf %dots, %scales : tensor<8x16xf32>
      %highest = linalg.reduce { arith.maximumf } ins(%scores : tensor<8x16xf32>) outs(%peak : tensor<8xf32>)
        dimensions = [1]
      %drop = arith.subf %peak, %highest : tensor<8xf32>
      %alpha = math.exp %drop : tensor<8xf32>
      %wide = tensor.empty() : tensor<8x16xf32>
      %peaks = linalg.broadcast ins(%highest : tensor<8xf32>) outs(%wide : tensor<8x16xf32>) dimensions = [1]
      %shifted = arith.subf %scores, %peaks : tensor<8x16xf32>
      %p = math.exp %shifted : tensor<8x16xf32>
      %faded = arith.mulf %sum, %alpha : tensor<8xf32>
      %total = linalg.reduce { arith.addf } ins(%p : tensor<8x16xf32>) outs(%faded : tensor<8xf32>) dimensions = [1]
      %p16 = arith.truncf %p : tensor<8x16xf32> to tensor<8x16xf16>
      %wider = tensor.empty() : tensor<8x128xf32>
      %alphas = linalg.broadcast ins(%alpha : tensor<8xf32>) outs(%wider : tensor<8x128xf32>) dimensions = [1]
      %kept = arith.mulf %weighted, %alphas : tensor<8x128xf32>
      %updated = linalg.matmul ins(%p16, %v : tensor<8x16xf16>, tensor<16x128xf16>)
        outs(%kept : tensor<8x128xf32>) -> tensor<8x128xf32>
      scf.yield %highest, %total, %updated : tensor<8xf32>, tensor<8xf32>, tensor<8x128xf32>
    }
    %widest = tensor.empty() : tensor<8x128xf32>
    %sums = linalg.broadcast ins(%l : tensor<8xf32>) outs(%widest : tensor<8x128xf32>) dimensions = [1]
    %o32 = arith.divf %acc, %sums : tensor<8x128xf32>
    %o16 = arith.truncf %o32 : tensor<8x128xf32> to tensor<8x128xf16>
    %o3 = tensor.expand_shape %o16 [[0, 1], [2]] output_shape [2, 4, 128] : tensor<8x128xf16> into tensor<2x4x128xf16>
    %ot = ktdp.construct_access_tile %O[%token, %head, %c0] {access_tile_set = #query_tile, access_tile_order = #order3}
      : memref<8x32x128xf16> -> !ktdp.access_tile<2x4x128xindex>
    ktdp.store %o3, %ot : tensor<2x4x128xf16>, !ktdp.access_tile<2x4x128xindex>
    return
  }
}
